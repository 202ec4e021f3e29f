// Asks the primary of each key: the table key → group → shard → primary is watched, not asked for again and again.
//
//	printf 'N101\nN102\n' | go run . http://localhost:9090 'selector=app=flights&rule=modulo'
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"time"
)

// ask asks the primary of a key how far it has read; it waits while there is none.
func (c *client) ask(key string) (map[string]any, error) {
	http := http.Client{Timeout: 5 * time.Second}
	for ; ; time.Sleep(100 * time.Millisecond) {
		known := c.table.Load()
		if known == nil {
			continue
		}
		at, err := known.rangeOf(key)
		if err != nil {
			return nil, err
		}
		request, _ := json.Marshal(map[string]string{"shard": at.Shard})
		answer, err := http.Post(at.AdminEndpoint+"/v1/shards/stat", "application/json", bytes.NewReader(request))
		if err != nil {
			continue
		}
		var stat struct {
			Status      string
			ReadThrough map[string]string
		}
		err = json.NewDecoder(answer.Body).Decode(&stat)
		answer.Body.Close()
		if err == nil && stat.Status == "OK" {
			return map[string]any{"key": key, "shard": at.Shard, "primary": at.Primary, "readThrough": stat.ReadThrough}, nil
		}
	}
}

func main() {
	var asking client
	go asking.follow(os.Args[1], strings.Join(os.Args[2:], "&"))
	for keys := bufio.NewScanner(os.Stdin); keys.Scan(); {
		answer, err := asking.ask(keys.Text())
		if err != nil {
			answer = map[string]any{"key": keys.Text(), "error": err.Error()}
		}
		json.NewEncoder(os.Stdout).Encode(answer)
	}
}
