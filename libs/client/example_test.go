package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

// A prompt over two workers, token by token.
func Example() {
	ctx := context.Background()
	var workers []*worker.Client
	for _, address := range []string{"127.0.0.1:7711", "127.0.0.1:7721"} {
		w, err := worker.Open(address, dial.Default())
		if err != nil {
			log.Fatal(err)
		}
		defer w.Close()
		workers = append(workers, w)
	}
	r, err := route.Discover(ctx, workers) // do they hold one model, every layer once?
	if err != nil {
		log.Fatal(err)
	}
	prompt, err := r.Head().Tokenize(ctx, r.Fingerprint, "Once upon a time", true, false)
	if err != nil {
		log.Fatal(err)
	}
	s, err := session.Open(ctx, r, session.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Abandon()
	run, err := s.Generate(ctx, session.Generation{
		Tokens: prompt, MaxTokens: 64, Sampling: &workerpb.Sampling{Temperature: proto.Float32(0)},
	})
	if err != nil {
		log.Fatal(err)
	}
	for {
		token, err := run.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)) {
			log.Fatalf("%v: %v", r.Describe(fault.Of(err).Subject), err) // or Resume over a replica
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", token.Bytes)
	}
	if _, err := s.Close(ctx, false); err != nil {
		log.Print(err)
	}
}
