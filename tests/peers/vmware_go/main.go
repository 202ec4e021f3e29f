// A worker of vmware-go-kcl-v2: `vmware ENDPOINT STREAM TABLE NAME FAILOVER_MS`.
//
// It prints `record SHARD DATA` for each record, then checkpoints; `began SHARD`, and `REASON SHARD` when it is told to
// stop. SIGTERM stops it.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/vmware/vmware-go-kcl-v2/clientlibrary/config"
	"github.com/vmware/vmware-go-kcl-v2/clientlibrary/interfaces"
	"github.com/vmware/vmware-go-kcl-v2/clientlibrary/worker"
)

var printing sync.Mutex

func say(what, told string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(what, told)
}

type printer struct{ shard string }

func (p *printer) CreateProcessor() interfaces.IRecordProcessor { return &printer{} }

func (p *printer) Initialize(input *interfaces.InitializationInput) {
	p.shard = input.ShardId
	say("began", p.shard)
}

func (p *printer) ProcessRecords(input *interfaces.ProcessRecordsInput) {
	for _, each := range input.Records {
		say("record", p.shard+" "+string(each.Data))
	}
	if len(input.Records) > 0 {
		last := input.Records[len(input.Records)-1].SequenceNumber
		if err := input.Checkpointer.Checkpoint(last); err != nil {
			say("refused", p.shard+" "+err.Error())
		}
	}
}

func (p *printer) Shutdown(input *interfaces.ShutdownInput) {
	say(*interfaces.ShutdownReasonMessage(input.ShutdownReason), p.shard)
	if input.ShutdownReason == interfaces.TERMINATE {
		if err := input.Checkpointer.Checkpoint(nil); err != nil {
			say("refused", p.shard+" "+err.Error())
		}
	}
}

func main() {
	endpoint, failover := os.Args[1], os.Args[5]
	milliseconds, err := strconv.Atoi(failover)
	if err != nil {
		panic(err)
	}
	test := credentials.NewStaticCredentialsProvider("test", "test", "")
	settings := config.NewKinesisClientLibConfigWithCredentials("peers", os.Args[2], "us-east-1", os.Args[4], test, test).
		WithKinesisEndpoint(endpoint).
		WithDynamoDBEndpoint(endpoint).
		WithTableName(os.Args[3]).
		WithInitialPositionInStream(config.TRIM_HORIZON).
		WithFailoverTimeMillis(milliseconds).
		WithLeaseRefreshPeriodMillis(milliseconds / 2).
		WithLeaseRefreshWaitTime(milliseconds / 4).
		WithShardSyncIntervalMillis(1000).
		WithIdleTimeBetweenReadsInMillis(250).
		WithLeaseStealing(true).
		WithLeaseStealingIntervalMillis(1000).
		WithLeaseSyncingIntervalMillis(1000)
	running := worker.NewWorker(&printer{}, settings)
	if err := running.Start(); err != nil {
		panic(err)
	}
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM)
	<-ending
	running.Shutdown()
	say("stopped", "true")
}
