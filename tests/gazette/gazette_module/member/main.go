// Program member is a consumer of Gazette's framework that counts rows by key in a JSON file with a recovery log, and
// echoes each row into a journal, as the tests' application in Python does.
//
//	member serve --echo-to=JOURNAL …    serve shards, with the options of any Gazette consumer
//	member read BROKER JOURNAL          print what Gazette's reader sees committed, an object a line
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/consumer"
	"go.gazette.dev/core/consumer/recoverylog"
	"go.gazette.dev/core/labels"
	mbp "go.gazette.dev/core/mainboilerplate"
	"go.gazette.dev/core/mainboilerplate/runconsumer"
	"go.gazette.dev/core/message"
)

type row struct {
	Meta struct {
		UUID message.UUID `json:"uuid"`
	} `json:"_meta"`
	Key   string `json:"key,omitempty"`
	N     int    `json:"n,omitempty"`
	Shard string `json:"shard,omitempty"`
}

func (r *row) GetUUID() message.UUID                         { return r.Meta.UUID }
func (r *row) SetUUID(uuid message.UUID)                     { r.Meta.UUID = uuid }
func (r *row) NewAcknowledgement(pb.Journal) message.Message { return new(row) }

func newRow(*pb.JournalSpec) (message.Message, error) { return new(row), nil }

type config struct {
	runconsumer.BaseConfig
	EchoTo string `long:"echo-to" required:"true" description:"Journal of the echoes"`
}

type tally struct{ config *config }

func (t tally) NewConfig() runconsumer.Config                       { return t.config }
func (tally) InitApplication(runconsumer.InitArgs) error            { return nil }
func (tally) NewMessage(s *pb.JournalSpec) (message.Message, error) { return newRow(s) }

func (tally) NewStore(_ consumer.Shard, rec *recoverylog.Recorder) (consumer.Store, error) {
	return consumer.NewJSONFileStore(rec, &map[string]int{})
}

func (t tally) ConsumeMessage(shard consumer.Shard, store consumer.Store, env message.Envelope, pub *message.Publisher) error {
	var read = env.Message.(*row)
	if message.GetFlags(read.GetUUID()) == message.Flag_ACK_TXN {
		return nil
	}
	(*store.(*consumer.JSONFileStore).State.(*map[string]int))[read.Key]++
	var echo = &row{Key: read.Key, N: read.N, Shard: shard.Spec().Id.String()}
	var _, err = pub.PublishUncommitted(t.echoes, echo)
	return err
}

func (t tally) echoes(message.Mappable) (pb.Journal, string, error) {
	return pb.Journal(t.config.EchoTo), labels.ContentType_JSONLines, nil
}

func (tally) FinalizeTxn(consumer.Shard, consumer.Store, *message.Publisher) error { return nil }

func read(broker pb.Endpoint, journal pb.Journal) error {
	var ctx = pb.WithDispatchDefault(context.Background())
	pb.RegisterGRPCDispatcher("local")
	var config mbp.ClientConfig
	config.Address = broker
	var reader = client.NewRetryReader(ctx, config.MustRoutedJournalClient(ctx), pb.ReadRequest{Journal: journal})
	var rows = message.NewReadCommittedIter(reader, newRow, message.NewSequencer(nil, nil, 1024))
	for {
		var env, err = rows.Next()
		if errors.Is(err, client.ErrOffsetNotYetAvailable) {
			return nil
		} else if err != nil {
			return err
		}
		if message.GetFlags(env.GetUUID()) == message.Flag_ACK_TXN {
			continue
		}
		if err = json.NewEncoder(os.Stdout).Encode(env.Message); err != nil {
			return err
		}
	}
}

func main() {
	if len(os.Args) != 4 || os.Args[1] != "read" {
		runconsumer.Main(tally{new(config)})
	} else if err := read(pb.Endpoint(os.Args[2]), pb.Journal(os.Args[3])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
