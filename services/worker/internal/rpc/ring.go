package rpc

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
)

// ringService is RingService: tails bring duplicates of tokens to the sessions whose head this worker is.
type ringService struct {
	workerpb.UnimplementedRingServiceServer
	server *Server
}

// ringStream is one ring as gRPC has it.
type ringStream = grpc.ClientStreamingServer[workerpb.RingRequest, workerpb.RingResponse]

// ringEnd is how the reader of a ring ended.
type ringEnd struct {
	first uint64
	err   error
}

// Ring takes a ring in until it ends, or its attempt does.
func (r *ringService) Ring(stream ringStream) error {
	joined, ended := make(chan *live.Ring, 1), make(chan ringEnd, 1)
	go func() { ended <- r.guarded(stream, joined) }() // ends with the stream, which ends with this handler at the latest
	late := time.NewTimer(r.server.options.Handshake)
	defer late.Stop()
	select {
	case ring := <-joined:
		select {
		case end := <-ended:
			return r.answer(stream, end)
		case <-ring.Over():
			return r.answer(stream, ringEnd{first: ring.Leave()})
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	case end := <-ended:
		return r.answer(stream, end)
	case <-late.C:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "no hello came for %v", r.server.options.Handshake)
	}
}

func (r *ringService) answer(stream ringStream, end ringEnd) error {
	if end.err != nil {
		return end.err
	}
	return stream.SendAndClose(&workerpb.RingResponse{FirstByRing: end.first})
}

// guarded is read, whose panic costs the ring alone.
func (r *ringService) guarded(stream ringStream, joined chan<- *live.Ring) (end ringEnd) {
	defer r.server.recover(workerpb.RingService_Ring_FullMethodName, &end.err)
	end.first, end.err = r.read(stream, joined)
	return end
}

// read hands every token on until the stream ends, and returns how many came before the chain's.
func (r *ringService) read(stream ringStream, joined chan<- *live.Ring) (uint64, error) {
	m, err := r.next(stream)
	if err != nil {
		return 0, err
	}
	if m.GetHello() == nil {
		return 0, session.Malformed("hello", "the first message of a ring")
	}
	ring, refused := r.server.options.Directory.Ring(m.GetHello())
	if refused != nil {
		return 0, refused
	}
	defer ring.Leave()
	joined <- ring
	for {
		m, err := r.next(stream)
		switch {
		case errors.Is(err, io.EOF):
			return ring.Leave(), nil
		case err != nil:
			return 0, err
		case m.GetToken() == nil:
			return 0, session.Malformed("token", "every message after the first")
		}
		if err := ring.Take(m.GetToken()); err != nil {
			return 0, err
		}
	}
}

// next is the next message, with nothing in it that is unknown.
func (r *ringService) next(stream ringStream) (*workerpb.RingRequest, error) {
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := r.server.strict(m); err != nil {
		return nil, err
	}
	return m, nil
}
