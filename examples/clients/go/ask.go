// Asks the primary of each key for its state: the table key → group → shard → primary is watched, not asked for again and again.
//
//	printf 'N101\nN102\n' | go run . http://localhost:9090 'selector=app=flights&rule=modulo'
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"
)

// ask asks the primary of a key for its state. It waits while there is none, or the shard is one that gave the key away (409).
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
		request, _ := json.Marshal(map[string]any{"shard": at.Shard, "keys": [][]string{{key}}})
		response, err := http.Post(at.AdminEndpoint+"/v1/keyed/get_keys", "application/json", bytes.NewReader(request))
		if err != nil {
			continue
		}
		var answer struct {
			Status, Message string
			Rows            []map[string]any
			State           struct{ ReadThrough map[string]string }
		}
		err = json.NewDecoder(response.Body).Decode(&answer)
		response.Body.Close()
		if response.StatusCode == 400 || response.StatusCode == 501 {
			return nil, errors.New(answer.Message)
		}
		if err == nil && answer.Status == "OK" {
			return map[string]any{"key": key, "shard": at.Shard, "primary": at.Primary, "rows": answer.Rows, "readThrough": answer.State.ReadThrough}, nil
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
