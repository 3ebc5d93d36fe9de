package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// load is Load with args on the command line, environ around it and yaml in a file.
func load(t *testing.T, args, environ []string, yaml string) (Config, error) {
	t.Helper()
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "worker.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags, environ)
}

// faults fails the test unless err is exactly as many faults, each holding all words of its line.
func faults(t *testing.T, err error, want ...string) {
	t.Helper()
	var got Faults
	if !errors.As(err, &got) {
		t.Fatalf("error is %v, want Faults", err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d faults, want %d:\n%v", len(got), len(want), got)
	}
	for i, line := range want {
		for word := range strings.FieldsSeq(line) {
			if !strings.Contains(got[i], word) {
				t.Errorf("fault %d is %q, want it to hold %q", i, got[i], word)
			}
		}
		if strings.ContainsAny(got[i], "\n") {
			t.Errorf("fault %d is more than one line: %q", i, got[i])
		}
	}
}

func TestDefaultIsLegalButForTheModel(t *testing.T) {
	faults(t, Default().Validate(), "--model DGR_MODEL --store DGR_STORE")
	c := Default()
	c.Model = "m.gguf"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestPrecedence(t *testing.T) {
	yaml := "model: file.gguf\ncontext: 100\nsessions: 3\nlinger: 1s\nchain:\n  allow: [10.0.0.1:7711, '10.1.0.0/16:*']\nwindow: {steps: 9}\n"
	environ := []string{"DGR_CONTEXT=200", "DGR_SESSIONS=5", "DGR_NATIVE_CACHE=/x", "PATH=/bin"}
	got, err := load(t, []string{"--context", "300", "--mmap=false", "--announce", "--layers", "3:"}, environ, yaml)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Model = "file.gguf"
	want.Context = 300 // flag over environment over file
	want.Sessions = 5  // environment over file
	want.Linger = time.Second
	want.ChainAllow = []string{"10.0.0.1:7711", "10.1.0.0/16:*"}
	want.WindowSteps = 9
	want.MemoryMap = false
	want.Announce = true
	want.Layers = engine.LayerRange{First: 3}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})); d != "" {
		t.Error(d)
	}
}

func TestFileNamedByEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte("model: a.gguf\nlayers: \"1:4\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, nil, []string{"DGR_CONFIG=" + path}, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Model != "a.gguf" || c.Layers != (engine.LayerRange{First: 1, End: 4}) {
		t.Errorf("model %q, layers %v", c.Model, c.Layers)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := load(t,
		[]string{"--layers", "3:1", "--sessions", "0", "--linger", "soon", "--listen", "0.0.0.0:7711"},
		[]string{"DGR_CACHE_TYPE=q4"},
		"model: m.gguf\nbatches: 4\nthreads: many\nchain: {allow: nowhere}\n")
	faults(t, err,
		"worker.yaml batches no option batch",
		"--layers \"3:1\" FIRST:END",
		"threads in worker.yaml \"many\" whole number",
		"--linger \"soon\" 30s",
		"chain.allow in worker.yaml nowhere HOST:PORT",
		"--sessions 0 1 to 4096",
		"DGR_CACHE_TYPE q4 f32, f16 or q8_0",
		"--listen 0.0.0.0:7711 --insecure",
	)
}

func TestEveryOptionHasALegalBound(t *testing.T) {
	base := []string{"--model", "m.gguf"}
	for _, tt := range []struct{ flag, bad, legal string }{
		{"layers", "x", "FIRST:END"}, {"layers", "2", "FIRST:END"}, {"layers", "2:2", "FIRST:END"}, {"layers", "-1:2", "FIRST:END"},
		{"engine", "cuda", "llama or fake"},
		{"worker-id", "a b", "letters"}, {"worker-id", strings.Repeat("w", 129), "1 to 128"},
		{"listen", "7711", "HOST:PORT"}, {"listen", "127.0.0.1:70000", "65535"}, {"admin", "x:y", "HOST:PORT"},
		{"admin", ":7712", "--insecure"}, {"listen", "[::]:1", "--insecure"}, {"listen", "10.0.0.1:1", "--insecure"},
		{"chain-allow", "10.0.0.0/99:1", "NETWORK:PORT"}, {"chain-allow", "h:0", "PORT from 1"}, {"chain-allow", ":1", "HOST:PORT"},
		{"ring-advertise", "10.0.0.7", "HOST:PORT"}, {"ring-advertise", ":7711", "HOST:PORT"}, {"ring-advertise", "0.0.0.0:7711", "wildcard"}, {"ring-advertise", "h:x", "HOST:PORT"},
		{"tls-allow", "a=steal", "infer, chain, delegate, text, observe, admin and all"}, {"tls-allow", "a", "NAME=OPERATIONS"},
		{"authz-address", "nowhere", "unix:PATH"}, {"authz-address", "unix:", "unix:PATH"}, {"authz-timeout", "0s", "10ms to 1m"}, {"authz-keep", "1h", "0s to 10m"},
		{"reflection", "x", "true or false"},
		{"insecure", "maybe", "true or false"}, {"keepalive", "1ms", "1s to 1h"},
		{"sessions", "256", "1 to 255"}, {"context", "0", "1 to 16777216"}, {"threads", "0", "1 to 1024"},
		{"batch", "0", "1 to 65536"}, {"micro-batch", "0", "1 to 65536"}, {"cache-type", "f64", "q8_0"},
		{"flash-attention", "auto", "true or false"}, {"mmap", "x", "true or false"}, {"deterministic", "x", "true or false"},
		{"window-steps", "0", "1 to 4096"}, {"window-bytes", "1", "64KiB to 1TiB"}, {"window-bytes", "much", "16MiB"},
		{"window-worker-bytes", "1MiB", "session's window"}, {"message-bytes", "5GiB", "below 4GiB"}, {"message-bytes", "1", "128KiB to 64MiB"},
		{"open-budget", "0s", "100ms to 5m"}, {"idle", "0s", "1s to 24h"}, {"linger", "-1s", "0s to 24h"}, {"drain", "25h", "0s to 24h"},
		{"probe-interval", "1ms", "100ms to 1h"}, {"probe-timeout", "1h", "10ms to 1m"},
		{"log-level", "loud", "debug, info, warn or error"}, {"log-format", "xml", "text or json"},
		{"announce", "x", "true or false"}, {"exit-with-stdin", "x", "true or false"},
		{"micro-batch", "513", "at most the batch"}, {"listen", "127.0.0.1:7712", "port of its own"},
	} {
		t.Run(tt.flag+"="+tt.bad, func(t *testing.T) {
			_, err := load(t, append(base, "--"+tt.flag+"="+tt.bad), nil, "")
			var f Faults
			if !errors.As(err, &f) || !strings.Contains(err.Error(), tt.legal) || !strings.Contains(err.Error(), "--"+tt.flag) {
				t.Errorf("error is %v, want the flag's name and %q", err, tt.legal)
			}
		})
	}
}

func TestFreePortsMayLookEqual(t *testing.T) {
	if _, err := load(t, []string{"--model", "m.gguf", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, nil, ""); err != nil {
		t.Error(err)
	}
}

func TestModelAndEngineBelongTogether(t *testing.T) {
	_, err := load(t, []string{"--model", "fake:layers=5"}, nil, "")
	faults(t, err, "--model fake:layers=5 add --engine fake")
	_, err = load(t, []string{"--model", "m.gguf", "--engine", "fake"}, nil, "")
	faults(t, err, "--model m.gguf reads no files fake:layers=6")
	if _, err = load(t, []string{"--engine", "fake"}, nil, ""); err != nil {
		t.Errorf("the fake engine without a model: %v", err)
	}
}

func TestFileFaults(t *testing.T) {
	_, err := load(t, []string{"--config", "/no/such/worker.yaml", "--model", "m.gguf"}, nil, "")
	faults(t, err, "--config /no/such/worker.yaml does not exist")
	_, err = load(t, []string{"--model", "m.gguf"}, nil, "a: [\n")
	faults(t, err, "worker.yaml YAML")
	if _, err = load(t, []string{"--model", "m.gguf"}, nil, "chain:\nwindow: {}\n"); err != nil {
		t.Errorf("a group without keys: %v", err)
	}
}

func TestUsageNamesEveryOption(t *testing.T) {
	usage := Usage()
	for _, o := range options() {
		if !strings.Contains(usage, "--"+flagName(o.key)) {
			t.Errorf("the help does not name --%s", flagName(o.key))
		}
	}
}
