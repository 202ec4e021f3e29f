module broadsheet.example/ask

go 1.22
