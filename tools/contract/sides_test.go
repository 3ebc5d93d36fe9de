package contract

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	client "github.com/distributed-gguf-runtime/dgr/libs/client/worker"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// worker is the present worker, with the fake engine, in a process of its own; it returns the address.
func worker(t *testing.T) string {
	t.Helper()
	w, err := workspace.Open(".")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "dgr-worker")
	_, err = w.Output(t.Context(), "", []string{"CGO_ENABLED=0"}, "go", "build", "-o", program, "./services/worker/cmd/dgr-worker")
	require.NoError(t, err)
	cmd := exec.Command(program, "--engine", "fake", "--model", "fake", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--announce", "--exit-with-stdin", "--log-level", "error")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	var announced struct {
		Address string `json:"address"`
	}
	require.NoError(t, json.Unmarshal(line, &announced))
	return announced.Address
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// words are the messages of one revision.
type words struct{ files *protoregistry.Files }

func wordsOf(t *testing.T, files *descriptorpb.FileDescriptorSet) words {
	t.Helper()
	r, err := protodesc.NewFiles(files)
	require.NoError(t, err)
	return words{r}
}

// empty is a message of the revision.
func (w words) empty(name protoreflect.Name) *dynamicpb.Message {
	d, err := w.files.FindDescriptorByName(protoreflect.FullName(pkg).Append(name))
	if err != nil {
		panic(err)
	}
	return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
}

// say is a message in the words of the revision.
func (w words) say(m protobuf.Message) *dynamicpb.Message {
	said := w.empty(m.ProtoReflect().Descriptor().Name())
	data, err := protobuf.Marshal(m)
	if err == nil {
		err = protobuf.Unmarshal(data, said)
	}
	if err != nil {
		panic(err)
	}
	return said
}

// in is a message below m, by the names of the fields that lead to it.
func in(m protoreflect.Message, path ...protoreflect.Name) protoreflect.Message {
	for _, name := range path {
		m = m.Mutable(m.Descriptor().Fields().ByName(name)).Message()
	}
	return m
}

func set(m protoreflect.Message, name protoreflect.Name, v any) {
	m.Set(m.Descriptor().Fields().ByName(name), protoreflect.ValueOf(v))
}

// link is a Session stream in the words of a revision. What comes is read in them, and as the present code reads it.
type link struct {
	t      *testing.T
	words  words
	stream grpc.ClientStream
}

func (w words) link(t *testing.T, conn *grpc.ClientConn) link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, workerpb.WorkerService_Session_FullMethodName)
	require.NoError(t, err)
	return link{t, w, stream}
}

func (l link) send(m *workerpb.SessionRequest, change func(protoreflect.Message)) {
	l.t.Helper()
	said := l.words.say(m)
	if change != nil {
		change(said)
	}
	require.NoError(l.t, l.stream.SendMsg(said))
}

// receive is the next response but credit. An enum value that the revision does not have is a fault.
func (l link) receive() (*workerpb.SessionResponse, error) {
	l.t.Helper()
	for {
		m := l.words.empty("SessionResponse")
		if err := l.stream.RecvMsg(m); err != nil {
			return nil, err
		}
		known(l.t, m)
		data, err := protobuf.Marshal(m)
		require.NoError(l.t, err)
		response := &workerpb.SessionResponse{}
		require.NoError(l.t, protobuf.Unmarshal(data, response))
		if response.GetCredit() == nil {
			return response, nil
		}
	}
}

func known(t *testing.T, m protoreflect.Message) {
	t.Helper()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				known(t, v.List().Get(i).Message())
			}
		case f.Message() != nil:
			known(t, v.Message())
		case f.Enum() != nil && !f.IsList() && f.Enum().Values().ByNumber(v.Enum()) == nil:
			t.Errorf("%s is %d, which its revision does not have", f.FullName(), v.Enum())
		}
		return true
	})
}

// openFor is an Open of a range for a worker with the whole model.
func openFor(t *testing.T, conn *grpc.ClientConn, least, most int) *workerpb.SessionRequest {
	t.Helper()
	c, err := workerpb.NewWorkerServiceClient(conn).GetCapability(t.Context(), &workerpb.GetCapabilityRequest{})
	require.NoError(t, err)
	shard := c.GetCapability().GetShard()
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: &workerpb.Open{
		SessionId: []byte(t.Name() + "                ")[:16], SessionKey: make([]byte, 32), Attempt: 1,
		Revisions: &workerpb.RevisionRange{Min: uint32(least), Max: uint32(most)}, ContextTokens: 64, Egress: workerpb.Egress_EGRESS_FORWARD,
		Expect:  &workerpb.Expectation{Fingerprint: shard.GetFingerprint(), Layers: shard.GetLayers()},
		Receive: &workerpb.ReceiveWindow{Tokens: protobuf.Uint32(64), Bytes: protobuf.Uint64(1 << 20)},
		Linger:  durationpb.New(0), Budget: durationpb.New(5 * time.Second),
	}}}
}

func prefillOf(id, after uint64, at uint32, tokens ...uint32) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: &workerpb.Step{
		StepId: id, After: &after, ExpectCache: &workerpb.ExpectCache{Length: &at}, Budget: durationpb.New(5 * time.Second),
		Kind: &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: tokens}},
	}}}
}

// A client of the next revision at the present worker: the common revision is spoken, what the worker cannot know is refused with
// its path and changes nothing, and without the old revision nothing is opened.
func TestANewClientAtAnOldWorker(t *testing.T) {
	t.Parallel()
	r := rehearse(t)
	r.next()
	files, err := r.Files(t.Context())
	require.NoError(t, err)
	next, conn := wordsOf(t, files), connect(t, worker(t))

	l := next.link(t, conn)
	l.send(openFor(t, conn, r.old, r.old+1), nil)
	m, err := l.receive()
	require.NoError(t, err)
	require.EqualValues(t, r.old, m.GetOpened().GetRevision())
	for i, c := range []struct {
		path   string
		change func(protoreflect.Message)
	}{
		{"step.#9000", func(m protoreflect.Message) { set(in(m, "step"), "priority", uint32(3)) }},
		{"step.#9001", func(m protoreflect.Message) { set(in(m, "step", "reason"), "text", "why") }},
	} {
		l.send(prefillOf(uint64(i+1), 0, 0, 40, 41), c.change)
		m, err := l.receive()
		require.NoError(t, err)
		e := m.GetStepFailed().GetError()
		require.Equal(t, workerpb.ErrorCode_ERROR_CODE_MALFORMED, e.GetCode())
		require.Equal(t, c.path, e.GetDetail().GetField().GetPath())
	}
	l.send(prefillOf(3, 0, 0, 40, 41), nil)
	m, err = l.receive()
	require.NoError(t, err)
	require.EqualValues(t, 2, m.GetStepResult().GetCache().GetLength())

	for _, c := range []struct {
		least int
		want  workerpb.ErrorCode
	}{{r.old, workerpb.ErrorCode_ERROR_CODE_MALFORMED}, {r.old + 1, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION}} {
		l := next.link(t, conn)
		open := openFor(t, conn, c.least, r.old+1)
		open.GetOpen().SessionId[0]++
		l.send(open, func(m protoreflect.Message) { set(in(m, "open"), "egress", protoreflect.EnumNumber(9000)) })
		_, err := l.receive()
		require.ErrorIs(t, fault.FromStatus(err), fault.Code(c.want))
	}
}

// A client of each frozen revision at the present worker, in the words of that revision alone.
func TestOldClientsAtThePresentWorker(t *testing.T) {
	t.Parallel()
	r := rehearse(t)
	conn := connect(t, worker(t))
	frozen, err := r.Frozen()
	require.NoError(t, err)
	for _, revision := range frozen {
		files, err := r.FrozenFiles(revision)
		require.NoError(t, err)
		l := wordsOf(t, files).link(t, conn)
		l.send(openFor(t, conn, revision, revision), nil)
		m, err := l.receive()
		require.NoError(t, err)
		require.EqualValues(t, revision, m.GetOpened().GetRevision())
		l.send(prefillOf(1, 0, 0, 40, 41, 42), nil)
		m, err = l.receive()
		require.NoError(t, err)
		require.EqualValues(t, 3, m.GetStepResult().GetCache().GetLength())
		l.send(prefillOf(2, 1, 9, 43), nil)
		m, err = l.receive()
		require.NoError(t, err)
		require.Equal(t, workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, m.GetStepFailed().GetError().GetCode())
		l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}}, nil)
		m, err = l.receive()
		require.NoError(t, err)
		require.Equal(t, workerpb.CloseReason_CLOSE_REASON_REQUESTED, m.GetClosed().GetReason())
		_, err = l.receive()
		require.ErrorIs(t, err, io.EOF)
	}
}

// newer stands before the present worker and answers in the words of the next revision: with a field that nobody knows yet, and
// with a code that nobody knows yet.
func newer(t *testing.T, next words, behind *grpc.ClientConn) string {
	t.Helper()
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, up grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(up)
		down, err := behind.NewStream(up.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			return err
		}
		go func() { // ends with the stream
			for {
				m := &emptypb.Empty{} // any message: its bytes stay as they are
				if err := up.RecvMsg(m); err != nil {
					_ = down.CloseSend()
					return
				}
				if down.SendMsg(m) != nil {
					return
				}
			}
		}()
		for {
			m := &emptypb.Empty{}
			if err := down.RecvMsg(m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if method == workerpb.WorkerService_Session_FullMethodName {
				m.ProtoReflect().SetUnknown(younger(next, m.ProtoReflect().GetUnknown()))
			}
			if err := up.SendMsg(m); err != nil {
				return err
			}
		}
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-served)
	})
	return l.Addr().String()
}

// younger is a response with more in it than the present revision has.
func younger(next words, data []byte) []byte {
	m := next.empty("SessionResponse")
	if err := protobuf.Unmarshal(data, m); err != nil {
		panic(err)
	}
	fields := m.Descriptor().Fields()
	if m.Has(fields.ByName("step_result")) {
		set(in(m, "step_result"), "overtaken", uint32(7))
	}
	if m.Has(fields.ByName("step_failed")) {
		set(in(m, "step_failed", "error"), "code", protoreflect.EnumNumber(9000))
	}
	out, err := protobuf.Marshal(m)
	if err != nil {
		panic(err)
	}
	return out
}

// The present client at a worker that says more than its revision has: what it does not know it passes over, and an unknown code
// acts by the recovery that it carries.
func TestThePresentClientReadsLeniently(t *testing.T) {
	t.Parallel()
	r := rehearse(t)
	r.next()
	files, err := r.Files(t.Context())
	require.NoError(t, err)
	w, err := client.Open(newer(t, wordsOf(t, files), connect(t, worker(t))), dial.Default())
	require.NoError(t, err)
	defer w.Close()
	discovered, err := route.Discover(t.Context(), []*client.Client{w})
	require.NoError(t, err)
	s, err := session.Open(t.Context(), discovered, session.Default())
	require.NoError(t, err)
	defer s.Abandon()
	require.NoError(t, s.Prefill(t.Context(), []uint32{40, 41}))
	require.EqualValues(t, 2, s.Length())

	err = s.Prefill(t.Context(), []uint32{1 << 30})
	e := fault.Of(err)
	require.EqualValues(t, 9000, e.Code)
	require.Equal(t, workerpb.Recovery_RECOVERY_FIX_REQUEST, e.Recovery, "the recovery that TOKEN_OUT_OF_RANGE carries")
	require.NoError(t, s.Prefill(t.Context(), []uint32{42}), "the session goes on")
	require.EqualValues(t, 3, s.Length())
}
