// Package config is everything that an operator can set on a worker: the options with their names, defaults and legal
// values, and how flags, environment and a YAML file are laid over one another.
//
// What an option does is the business of the room that receives it; where such a room has a language of its own (as
// chain.allow), that room reads it here too. The only file that is opened is the configuration file.
package config

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
)

// Config is a worker's configuration. Lengths of time are durations, sizes are bytes.
type Config struct {
	Model    string            // path of a GGUF (or any of its parts), `fake` or `fake:…` with the fake engine; empty: none at start
	Layers   engine.LayerRange // End 0: to the last layer
	Store    string            // folder of the models that LoadShard may name; empty: LoadShard is refused (the fake engine needs none)
	Engine   string            // llama or fake
	Isolate  bool              // llama runs in a process of its own
	WorkerID string            // 1 to 128 bytes; empty: made of host name and port

	Listen   string // HOST:PORT of gRPC; port 0 takes a free one
	Admin    string // HOST:PORT of HTTP
	Insecure bool   // a non-loopback address may be listened on

	Access Access

	Sessions       uint32 // at once, 1 to 4096; 255 with llama
	Context        uint32 // longest of a session, tokens
	Threads        uint32
	Batch          uint32 // rows of one native call
	MicroBatch     uint32 // 1 to Batch
	CacheType      string // f32, f16, q8_0 or q4_0
	FlashAttention bool
	MemoryMap      bool
	ShortWindow    bool // sliding windows keep little more than they see
	Deterministic  bool // one session per native call

	ChainAllow []string // HOST:PORT or NETWORK:PORT, PORT may be *, =SAN may follow; empty: the worker dials nobody

	RingAdvertise string // HOST:PORT where the tails of routes whose head this is reach it; port 0: that of Listen; empty: no ring

	WindowSteps       uint32 // first window of a session
	WindowBytes       uint64
	WindowWorkerBytes uint64 // sum of all windows
	WindowMaxSteps    uint32 // how far a session's window grows with use
	WindowMaxBytes    uint64
	OutgoingBytes     uint64        // sum of what waits to be sent to all peers
	KeptBytes         uint64        // of kept prefixes; 0: none are kept
	MessageBytes      uint32        // greatest gRPC message
	MetadataBytes     uint32        // greatest metadata of a call
	Streams           uint32        // calls that one connection may have under way
	Handshake         time.Duration // for a connection to stand, and a stream to open
	Principal         quota.Limits  // of each
	OpenBudget        time.Duration
	Idle              time.Duration
	Keepalive         time.Duration
	Linger            time.Duration
	Drain             time.Duration

	ProbeInterval time.Duration
	ProbeTimeout  time.Duration

	LogLevel  slog.Level
	LogFormat string // text or json

	Announce      bool
	ExitWithStdin bool

	names map[string]string // key → how the option was spelt where its value came from
}

// Default is the configuration of a worker that was told nothing.
func Default() Config {
	return Config{
		Engine: "llama", Isolate: true, Listen: "127.0.0.1:7711", Admin: "127.0.0.1:7712",
		Access:   Access{AuthorityTimeout: time.Second, Checked: 5 * time.Second},
		Sessions: 4, Context: 2048, Threads: uint32(runtime.GOMAXPROCS(0)), Batch: 512, MicroBatch: 512,
		CacheType: "f16", MemoryMap: true,
		WindowSteps: 8, WindowBytes: 16 << 20, WindowWorkerBytes: 1 << 30, MessageBytes: 1 << 20,
		WindowMaxSteps: 64, WindowMaxBytes: 256 << 20, OutgoingBytes: 2 << 30, KeptBytes: 1 << 30,
		MetadataBytes: 16 << 10, Streams: 1024, Handshake: 10 * time.Second, Principal: quota.Default(),
		OpenBudget: 5 * time.Second, Idle: 10 * time.Minute, Keepalive: 20 * time.Second,
		Linger: 30 * time.Second, Drain: 60 * time.Second,
		ProbeInterval: 10 * time.Second, ProbeTimeout: 5 * time.Second,
		LogLevel: slog.LevelInfo, LogFormat: "text",
	}
}

// llamaSessions is the most sequences of llama.cpp, without the one that probes use.
const llamaSessions = 255

// leastOutgoing is the least of OutgoingBytes for each session.
const leastOutgoing = 1 << 20

// Faults is every violation of a configuration, one sentence each.
type Faults []string

// Error is the sentences, one a line.
func (f Faults) Error() string { return strings.Join(f, "\n") }

// Validate reports all violations at once, as Faults, or nil.
func (c Config) Validate() error {
	var faults Faults
	for _, o := range options() {
		if legal := o.check(c); legal != "" {
			faults = append(faults, fmt.Sprintf("%s is %s, which is not legal; give %s", c.name(o.key), o.shown(c), legal))
		}
	}
	faults = append(faults, c.conflicts()...)
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// conflicts are the violations that two options commit together.
func (c Config) conflicts() Faults {
	var faults Faults
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if c.Model == "" && c.Store == "" && c.Engine != "fake" {
		fault("nothing can be loaded; give --model (%s) the path of a GGUF, or --store (%s) a folder of models", envName("model"), envName("store"))
	}
	if isFake := fakeModel(c.Model); c.Model != "" && isFake != (c.Engine == "fake") {
		if isFake {
			fault("%s is %q, which only the fake engine can load; add --engine fake", c.name("model"), c.Model)
		} else {
			fault("%s is %q, and the fake engine reads no files; give fake or fake:layers=6, or drop --engine fake", c.name("model"), c.Model)
		}
	}
	if c.Engine == "llama" && c.Sessions > llamaSessions {
		fault("%s is %d, and llama has at most %d sequences; give 1 to %d", c.name("sessions"), c.Sessions, llamaSessions, llamaSessions)
	}
	if c.MicroBatch > c.Batch {
		fault("%s is %d, more than the batch of %d; give at most the batch, or raise --batch", c.name("micro_batch"), c.MicroBatch, c.Batch)
	}
	if c.WindowWorkerBytes < c.WindowBytes {
		fault("%s is %d bytes, less than one session's window of %d; raise it or lower --window-bytes", c.name("window.worker_bytes"), c.WindowWorkerBytes, c.WindowBytes)
	}
	if c.WindowMaxBytes < c.WindowBytes || c.WindowMaxSteps < c.WindowSteps {
		fault("%s and %s are %d and %d, less than the first window of %d steps and %d bytes; raise them or lower the first window",
			c.name("window.max_steps"), c.name("window.max_bytes"), c.WindowMaxSteps, c.WindowMaxBytes, c.WindowSteps, c.WindowBytes)
	}
	if least := uint64(c.Sessions) * leastOutgoing; c.OutgoingBytes < least {
		fault("%s is %d bytes, too few for the answers of %d sessions; give %d or more, or lower --sessions", c.name("outgoing_bytes"), c.OutgoingBytes, c.Sessions, least)
	}
	if c.Listen == c.Admin && !strings.HasSuffix(c.Listen, ":0") {
		fault("%s and %s are both %s; give each a port of its own", c.name("listen"), c.name("admin"), c.Listen)
	}
	for _, at := range []struct{ key, address string }{{"listen", c.Listen}, {"admin", c.Admin}} {
		if addressFault(at.address) == "" && !loopback(at.address) && !c.Insecure && !c.Access.Secured() {
			fault("%s is %s, which others can reach without proving who they are; give a loopback address, TLS and authentication (--tls-cert with --tls-allow, --token-file or --authz-address), or --insecure if the network is yours alone",
				c.name(at.key), at.address)
		}
	}
	return append(faults, c.conflictsOfAccess()...)
}

// name is how the option was spelt where its value came from.
func (c Config) name(key string) string {
	if n, ok := c.names[key]; ok {
		return n
	}
	return "--" + flagName(key)
}
