// Package worker is the calls to one worker that need no session: who it is, how it is, text, and ending a session from
// outside. Every error is a *fault.Error that names the worker.
package worker

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Client talks to one worker. Its methods may be called from any goroutine.
type Client struct {
	conn   *dial.Conn
	worker workerpb.WorkerServiceClient
	text   workerpb.TextServiceClient
	shard  workerpb.ShardServiceClient
}

// Open makes a client of the worker at HOST:PORT. It does not connect yet.
func Open(address string, o dial.Options) (*Client, error) {
	conn, err := dial.Open(address, o)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn:   conn,
		worker: workerpb.NewWorkerServiceClient(conn),
		text:   workerpb.NewTextServiceClient(conn),
		shard:  workerpb.NewShardServiceClient(conn),
	}, nil
}

// Address is where the worker was dialled, as it was given.
func (c *Client) Address() string { return c.conn.Address }

// Close ends the connection and everything that runs over it.
func (c *Client) Close() error { return c.conn.Close() }

// Connect waits until the worker answers the door, or ctx ends.
func (c *Client) Connect(ctx context.Context) error { return c.conn.Connect(ctx) }

// Fault is err as this contract's error: what the worker said, or what its silence means.
func (c *Client) Fault(err error) *fault.Error {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	if f.Inferred && status.Code(err) == codes.Unavailable {
		return c.conn.Unreachable()
	}
	if f.Inferred {
		return f.With(func(e *fault.Error) { e.Message += " (worker at " + c.Address() + ")" })
	}
	return f
}

// refused is Fault as an error: a nil stays a nil.
func (c *Client) refused(err error) error {
	if err == nil {
		return nil
	}
	return c.Fault(err)
}

// Session opens the stream of one attempt. Its errors are raw; give them to Fault.
func (c *Client) Session(ctx context.Context) (workerpb.WorkerService_SessionClient, error) {
	return c.worker.Session(ctx)
}

// Capability says who the worker is and what it holds.
func (c *Client) Capability(ctx context.Context) (*workerpb.Capability, error) {
	r, err := c.worker.GetCapability(ctx, &workerpb.GetCapabilityRequest{})
	return r.GetCapability(), c.refused(err)
}

// Health is the last report about shard and engine.
func (c *Client) Health(ctx context.Context) (*workerpb.Health, error) {
	r, err := c.worker.GetHealth(ctx, &workerpb.GetHealthRequest{})
	return r.GetHealth(), c.refused(err)
}

// WatchHealth calls report with the present health and again at each change, until ctx ends (nil), report returns false
// (nil) or the stream breaks.
func (c *Client) WatchHealth(ctx context.Context, report func(*workerpb.Health) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.worker.WatchHealth(ctx, &workerpb.WatchHealthRequest{})
	for err == nil {
		var r *workerpb.WatchHealthResponse
		if r, err = stream.Recv(); err == nil && !report(r.GetHealth()) {
			return nil
		}
	}
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return c.refused(err)
}

// Metrics is the counters since the worker's instance began.
func (c *Client) Metrics(ctx context.Context) (*workerpb.GetMetricsResponse, error) {
	r, err := c.worker.GetMetrics(ctx, &workerpb.GetMetricsRequest{})
	return r, c.refused(err)
}

// Cancel ends a session at once. attempt bounds which attempt may be ended; 0: any. Idempotent.
func (c *Client) Cancel(ctx context.Context, id [16]byte, key [32]byte, attempt uint64) error {
	_, err := c.worker.CancelSession(ctx, &workerpb.CancelSessionRequest{SessionId: id[:], SessionKey: key[:], Attempt: bound(attempt)})
	return c.refused(err)
}

// Release frees a session's cache. attempt bounds which attempt may be ended; 0: any. Idempotent.
func (c *Client) Release(ctx context.Context, id [16]byte, key [32]byte, attempt uint64) error {
	_, err := c.worker.ReleaseSession(ctx, &workerpb.ReleaseSessionRequest{SessionId: id[:], SessionKey: key[:], Attempt: bound(attempt)})
	return c.refused(err)
}

func bound(attempt uint64) *uint64 {
	if attempt == 0 {
		return nil
	}
	return proto.Uint64(attempt)
}

// Tokenize turns text into ids of the model. addSpecial adds what the model puts around a prompt; parseSpecial reads special
// tokens written in the text.
func (c *Client) Tokenize(ctx context.Context, fingerprint [32]byte, text string, addSpecial, parseSpecial bool) ([]uint32, error) {
	r, err := c.text.Tokenize(ctx, &workerpb.TokenizeRequest{
		Fingerprint: fingerprint[:], Text: text, AddSpecial: addSpecial, ParseSpecial: parseSpecial,
	})
	return r.GetTokens(), c.refused(err)
}

// Detokenize turns ids into bytes, which may begin or end inside a UTF-8 sequence.
func (c *Client) Detokenize(ctx context.Context, fingerprint [32]byte, tokens []uint32, special bool) ([]byte, error) {
	r, err := c.text.Detokenize(ctx, &workerpb.DetokenizeRequest{Fingerprint: fingerprint[:], Tokens: tokens, Special: special})
	return r.GetData(), c.refused(err)
}

// RenderChat turns messages into a prompt. The request's fingerprint is filled in.
func (c *Client) RenderChat(ctx context.Context, fingerprint [32]byte, request *workerpb.RenderChatRequest) (*workerpb.RenderChatResponse, error) {
	request.Fingerprint = fingerprint[:]
	r, err := c.text.RenderChat(ctx, request)
	return r, c.refused(err)
}

// ParseChat turns generated text into an OpenAI message, a JSON object. parser is what RenderChat returned.
func (c *Client) ParseChat(ctx context.Context, fingerprint [32]byte, parser []byte, text string, partial bool) (string, error) {
	r, err := c.text.ParseChat(ctx, &workerpb.ParseChatRequest{Fingerprint: fingerprint[:], Parser: parser, Text: text, Partial: partial})
	return r.GetMessageJson(), c.refused(err)
}

// Load makes the worker load a model of its store and returns the model's fingerprint once the shard is READY. progress, if not
// nil, is called from the goroutine of Load. The end of ctx cancels the load.
func (c *Client) Load(ctx context.Context, request *workerpb.LoadShardRequest, progress func(*workerpb.LoadProgress)) (fingerprint [32]byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.shard.LoadShard(ctx, request)
	if err != nil {
		return fingerprint, c.refused(err)
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return fingerprint, nil
		case err != nil:
			return fingerprint, c.refused(err)
		}
		copy(fingerprint[:], m.GetFingerprint())
		if progress != nil {
			progress(m.GetProgress())
		}
	}
}

// Unload ends the worker's sessions and frees its shard. Idempotent.
func (c *Client) Unload(ctx context.Context) error {
	_, err := c.shard.UnloadShard(ctx, &workerpb.UnloadShardRequest{})
	return c.refused(err)
}

// Drain lets the worker finish its sessions within its default patience and take no more.
func (c *Client) Drain(ctx context.Context) (*workerpb.DrainResponse, error) {
	r, err := c.shard.Drain(ctx, &workerpb.DrainRequest{})
	return r, c.refused(err)
}
