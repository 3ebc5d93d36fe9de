package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
)

func TestAnnounceServeDrain(t *testing.T) {
	c := start(t, nil, faked("--layers", "2:", "--worker-id", "w2")...)
	a := c.ready()
	if a.WorkerID != "w2" || a.Layers != "2:5" || a.NLayer != 5 || len(a.Fingerprint) != 64 || a.Address == a.Admin {
		t.Errorf("announced %+v", a)
	}
	if status, body := get(t, "http://"+a.Admin+"/readyz"); status != 200 {
		t.Errorf("readyz: %d %s", status, body)
	}
	if status, body := get(t, "http://"+a.Admin+"/v1/capability"); status != 200 || !strings.Contains(body, a.Fingerprint) {
		t.Errorf("capability: %d %s", status, body)
	}
	if status, body := get(t, "http://"+a.Admin+"/metrics"); status != 200 || !strings.Contains(body, `dgr_worker_shard_state{state="READY"} 1`) || !strings.Contains(body, "\ndgr_worker_ready 1\n") {
		t.Errorf("metrics: %d %s", status, body)
	}
	checkDocumented(t, a.Admin)
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
	if l, err := net.Listen("tcp", a.Address); err != nil {
		t.Errorf("the port is still taken: %v", err)
	} else {
		l.Close()
	}
}

// checkDocumented looks for every metric of a worker in the description of its admin port.
func checkDocumented(t *testing.T, admin string) {
	t.Helper()
	spec, err := workeradmin.GetSwagger()
	if err != nil {
		t.Fatal(err)
	}
	documented := spec.Paths.Find("/metrics").Get.Description
	_, metrics := get(t, "http://"+admin+"/metrics")
	found := 0
	for line := range strings.Lines(metrics) {
		name, ok := strings.CutPrefix(line, "# TYPE dgr_worker_")
		if !ok {
			continue
		}
		found++
		name, _, _ = strings.Cut(name, " ")
		if !strings.Contains(documented, "`dgr_worker_"+name+"`") {
			t.Errorf("worker-admin.v1.yaml does not describe dgr_worker_%s", name)
		}
	}
	if found < 20 {
		t.Errorf("only %d metrics: %s", found, metrics)
	}
}

func TestOneKeyMayGiveTwoSignals(t *testing.T) {
	c := start(t, nil, faked("--drain", "100ms")...) // still draining when the second comes
	open(t, c.ready())
	c.signal(syscall.SIGINT)
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
}

// What is configured is what is promised.
func TestLimitsAreTheConfigured(t *testing.T) {
	a := start(t, nil, faked("--sessions", "3", "--context", "77", "--batch", "33", "--micro-batch", "11", "--threads", "1", "--cache-type", "q8_0",
		"--flash-attention", "--message-bytes", "256KiB", "--window-steps", "5", "--window-bytes", "1MiB", "--window-worker-bytes", "2MiB",
		"--window-max-steps", "6", "--window-max-bytes", "3MiB", "--outgoing-bytes", "48MiB", "--kept-bytes", "3MiB", "--metadata-bytes", "8KiB", "--connection-streams", "21", "--handshake", "4s", "--rights-checked", "2s",
		"--principal-opening", "22", "--principal-sessions", "23", "--principal-streams", "24", "--principal-requests", "250",
		"--principal-request-burst", "260", "--principal-control", "270", "--principal-control-burst", "280", "--linger", "7s", "--drain", "9s", "--idle", "11s", "--open-budget", "3s", "--keepalive", "13s", "--chain-allow", "localhost:*")...).ready()
	conn, err := dial.Open(a.Address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	r, err := workerpb.NewWorkerServiceClient(conn).GetCapability(ctx, &workerpb.GetCapabilityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	window := &workerpb.Credit{Steps: proto.Uint32(5), Bytes: proto.Uint64(1 << 20)}
	want := &workerpb.Limits{
		Sessions: 3, FirstWindow: window, MaxWindow: &workerpb.Credit{Steps: proto.Uint32(6), Bytes: proto.Uint64(3 << 20)}, WorkerOutgoingBytes: 48 << 20, OutputBytes: 3584 << 10,
		MetadataBytes: 8 << 10, PingInterval: durationpb.New(13 * time.Second / 4), ConnectionStreams: 21, Handshake: durationpb.New(4 * time.Second),
		RightsChecked:     durationpb.New(2 * time.Second),
		Principal:         &workerpb.PrincipalLimits{Opening: 22, Sessions: 23, Streams: 24, Requests: 250, RequestBurst: 260, Control: 270, ControlBurst: 280},
		WorkerWindowBytes: 2 << 20, MessageBytes: 256 << 10, BatchTokens: 33, StepTokens: 33,
		MaxLinger: durationpb.New(7 * time.Second), Idle: durationpb.New(11 * time.Second), OpenBudget: durationpb.New(3 * time.Second),
		Drain: durationpb.New(9 * time.Second), PrefillChunk: r.GetCapability().GetLimits().PrefillChunk, Keepalive: durationpb.New(13 * time.Second),
		KeptBytes: proto.Uint64(3 << 20),
	}
	if got := r.GetCapability().GetLimits(); !proto.Equal(got, want) {
		t.Errorf("limits %v, want %v", got, want)
	}
	n := r.GetCapability().GetNumerics()
	if n.GetMicroBatch() != 11 || n.GetCacheType() != "q8_0" || !n.GetFlashAttention() || n.GetThreads() != 1 || r.GetCapability().GetShard().GetContextLimit() != 77 {
		t.Errorf("numerics %v, shard %v", n, r.GetCapability().GetShard())
	}
	for _, f := range r.GetCapability().GetFeatures() {
		if f.GetName() == "chain" && f.GetStatus() != workerpb.FeatureStatus_FEATURE_STATUS_ON {
			t.Errorf("chain is %v although chain.allow lists a host", f)
		}
	}
}

func TestSlowLoadSaysHowFarItIs(t *testing.T) {
	c := start(t, nil, faked("--model", "fake:script=load slow 3s")...)
	c.says(`phase="reading weights"`)
	c.ready()
}

func TestNameIsMadeOfMachineAndPort(t *testing.T) {
	a := start(t, nil, faked()...).ready()
	_, port, _ := net.SplitHostPort(a.Address)
	if !strings.HasSuffix(a.WorkerID, "-"+port) {
		t.Errorf("the worker on port %s is called %s", port, a.WorkerID)
	}
}

func TestEndsWithStandardInput(t *testing.T) {
	c := start(t, nil, faked("--exit-with-stdin")...)
	c.ready()
	if err := c.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
}

func TestStandardInputIsNotAsked(t *testing.T) {
	c := start(t, nil, faked()...)
	a := c.ready()
	if err := c.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, "http://"+a.Admin+"/livez"); status != 200 {
		t.Errorf("livez: %d", status)
	}
}

// A load that hangs must neither silence the admin port nor keep the process from ending.
func TestSignalWhileLoading(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin := l.Addr().String()
	l.Close()
	args := append(faked(), "--admin", admin, "--model", "fake:script=load stuck", "--log-level", "debug")
	c := start(t, nil, args...)
	c.says("event=Load ")
	if status, body := get(t, "http://"+admin+"/readyz"); status != 503 || !strings.Contains(body, `"state":"LOADING"`) {
		t.Errorf("readyz: %d %s", status, body)
	}
	c.signal(syscall.SIGINT)
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
}

func TestBusyPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := l.Addr().String()
	start(t, nil, faked("--listen", busy)...).fails(exitFailed, busy, "in use", "--listen")
	start(t, nil, faked("--admin", busy)...).fails(exitFailed, busy, "in use", "--admin")
	start(t, nil, faked("--listen", "192.0.2.1:0", "--insecure")...).fails(exitFailed, "192.0.2.1:0", "no address of this machine")
}

func TestBadModel(t *testing.T) {
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	if err := os.WriteFile(cut, []byte("GGUF\x03\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(path string) []string {
		return []string{"--model", path, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	}
	start(t, nil, file(cut+".none")...).fails(exitFailed, cut+".none", "does not exist")
	start(t, nil, file(cut)...).fails(exitFailed, cut)
	start(t, nil, file(t.TempDir())...).fails(exitFailed)
	start(t, nil, faked("--layers", "2:9")...).fails(exitFailed, "2:9", "0:5")
	start(t, nil, append(faked(), "--model", "fake:layers=x")...).fails(exitFailed, "layers=x")
	start(t, nil, append(faked(), "--model", "fake:script=load fail UNSUPPORTED_ARCHITECTURE")...).fails(exitFailed)
	start(t, nil, append(faked(), "--model", "fake:script=probe lost")...).fails(exitFailed)
}

func TestBadConfiguration(t *testing.T) {
	start(t, nil, "--bogus").fails(exitUsage, "--bogus", "--help")
	start(t, nil, "serve").fails(exitUsage, "serve", "--help")
	start(t, nil, faked("--sessions", "0")...).fails(exitUsage, "--sessions", "1 to 4096")
	start(t, []string{"DGR_CACHE_TYPE=q4"}, faked()...).fails(exitUsage, "DGR_CACHE_TYPE", "f16")
	start(t, nil, faked("--config", "/none.yaml")...).fails(exitUsage, "/none.yaml", "does not exist")
	start(t, nil, faked("--listen", "0.0.0.0:0")...).fails(exitUsage, "--listen", "--insecure")

	c := start(t, []string{"DGR_THREADS=no"}, faked("--sessions", "0", "--layers", "3:1")...)
	if code := c.exit(); code != exitUsage || len(c.sentences()) != 3 || strings.Count(c.stderr.String(), "\n") != 3 {
		t.Errorf("exit code %d with three faults: %s", code, c.stderr.String())
	}
}

func TestEnvironmentAndFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.yaml")
	yaml := "engine: fake\nmodel: fake:layers=7\nlayers: 1:6\nworker_id: from-file\nannounce: true\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t, []string{"DGR_CONFIG=" + path, "DGR_LAYERS=2:6"}, "--worker-id", "from-flag").ready()
	if a.WorkerID != "from-flag" || a.Layers != "2:6" || a.NLayer != 7 {
		t.Errorf("announced %+v", a)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for flag, want := range map[string]string{"--help": "Exit codes:", "-h": "--chain-allow", "--version": "dgr-worker " + version} {
		c := start(t, nil, flag)
		var out strings.Builder
		if _, err := c.stdout.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		if code := c.exit(); code != exitFine || !strings.Contains(out.String(), want) || c.stderr.String() != "" {
			t.Errorf("%s: exit code %d, %s%s", flag, code, out.String(), c.stderr.String())
		}
	}
}
