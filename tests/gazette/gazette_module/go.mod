module broadsheet.dev/tests/gazette

go 1.22

require go.gazette.dev/core v0.100.0
