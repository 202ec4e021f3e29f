package main

import (
	"hash/fnv"
	"strings"
)

// The table from keys to shards: broadsheet.v1.KeyTable as JSON.
type keyRange struct {
	Journal, Begin, End           int
	Shard, Primary, AdminEndpoint string
}

type table struct {
	Rule     string
	Journals []string
	Groups   uint64
	Ranges   []keyRange
}

func fnv1a(text string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(text))
	return hash.Sum32()
}

// rangeOf returns the row that has a key. In state a text is 01, its bytes with 00 FF for each 00, and 00 00.
func (t *table) rangeOf(key string) (found keyRange, err error) {
	hash, journal := fnv1a(key), 0
	switch t.Rule {
	case "KEY_RULE_MODULO":
		journal = int(hash % uint32(len(t.Journals)))
	case "KEY_RULE_RENDEZVOUS":
		for i, name := range t.Journals {
			if hash^fnv1a(name) > hash^fnv1a(t.Journals[journal]) {
				journal = i
			}
		}
	}
	group, err := xxh3([]byte("\x01" + strings.ReplaceAll(key, "\x00", "\x00\xff") + "\x00\x00"))
	for _, one := range t.Ranges {
		all := one.Begin == 0 && one.End == int(t.Groups)
		if at := int(group % t.Groups); one.Journal == journal && (all || err == nil && one.Begin <= at && at < one.End) {
			return one, nil
		}
	}
	return found, err
}
