package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

type client struct{ table atomic.Pointer[table] }

// follow keeps the table current, at whichever member answers; each has 30 seconds between two responses.
func (c *client) follow(address, query string) {
	for turn := 0; ; turn++ {
		members := []string{address}
		if known := c.table.Load(); known != nil {
			for _, one := range known.Ranges {
				if one.AdminEndpoint != "" {
					members = append(members, one.AdminEndpoint)
				}
			}
		}
		if err := c.watch(members[turn%len(members)] + "/v1/keys/watch?" + query); err != nil {
			fmt.Fprintln(os.Stderr, "watch:", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (c *client) watch(url string) error {
	// Also a member that takes the connection, and then answers nothing, is left.
	silent, leave := context.WithCancel(context.Background())
	defer leave()
	silence := time.AfterFunc(30*time.Second, leave)
	defer silence.Stop()
	request, err := http.NewRequestWithContext(silent, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s %s %v", answer.Status, line, err)
		}
		silence.Reset(30 * time.Second)
		if data, found := strings.CutPrefix(line, "data: "); found {
			var event struct{ Table *table }
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				return err
			}
			if event.Table != nil {
				c.table.Store(event.Table)
			}
		}
	}
}
