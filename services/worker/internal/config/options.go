package config

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// option is one thing to set. The key is its path in the YAML file; flag and environment names follow from it.
type option struct {
	key, group, usage string
	kind              string // as the help shows it; empty for a switch
	value             func(*Config) value
	legal             func(Config) string // "" or what would be legal
}

// value reads and shows one field.
type value interface {
	set(text string) error // the error says what would be legal
	String() string
}

// check returns "" or what would be legal.
func (o option) check(c Config) string {
	if o.legal == nil {
		return ""
	}
	return o.legal(c)
}

// shown is the field's value as it would be written.
func (o option) shown(c Config) string {
	s := o.value(&c).String()
	if s == "" {
		return "empty"
	}
	return s
}

// flagName is the option's name on the command line, without dashes.
func flagName(key string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(key) }

// envName is the option's name in the environment.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flagName(key), "-", "_"))
}

// Groups of options in the order of the help.
const (
	groupModel   = "Model"
	groupNetwork = "Network"
	groupAccess  = "TLS and access"
	groupCompute = "Compute"
	groupLimits  = "Limits and times"
	groupLogs    = "Logs and supervision"
)

// options is the one list of all there is to set.
func options() []option {
	var all []option
	all = append(all, modelOptions()...)
	all = append(all, networkOptions()...)
	all = append(all, accessOptions()...)
	all = append(all, computeOptions()...)
	all = append(all, limitOptions()...)
	return append(all, supervisionOptions()...)
}

func modelOptions() []option {
	return []option{
		{key: "model", group: groupModel, kind: "PATH", usage: "GGUF file, or any of its parts; fake or fake:layers=6,seed=7 with the fake engine",
			value: func(c *Config) value { return (*text)(&c.Model) }},
		{key: "layers", group: groupModel, kind: "FIRST:END", usage: "layers of this shard, END not included; an empty END is the last layer",
			value: func(c *Config) value { return (*layers)(&c.Layers) },
			legal: func(c Config) string {
				return unless(c.Layers.End == 0 || c.Layers.First < c.Layers.End, layersLegal)
			}},
		{key: "engine", group: groupModel, kind: "NAME", usage: "llama, or fake: a deterministic engine without weights, for trying and tests",
			value: func(c *Config) value { return (*text)(&c.Engine) },
			legal: func(c Config) string { return oneOf(c.Engine, "llama", "fake") }},
		{key: "isolate", group: groupModel, usage: "run llama in a process of its own: a crash in native code then ends the sessions and not the worker",
			value: func(c *Config) value { return (*toggle)(&c.Isolate) }},
		{key: "store", group: groupModel, kind: "FOLDER", usage: "folder of the models that LoadShard may name; none: LoadShard is refused (the fake engine takes its names without)",
			value: func(c *Config) value { return (*text)(&c.Store) }},
		{key: "worker_id", group: groupModel, kind: "NAME", usage: "stable name of this worker; made of host name and port if empty",
			value: func(c *Config) value { return (*text)(&c.WorkerID) },
			legal: func(c Config) string {
				return unless(workerID(c.WorkerID), "1 to 128 letters, digits and any of . _ : -")
			}},
	}
}

func networkOptions() []option {
	address := func(at string) string { return addressFault(at) }
	return []option{
		{key: "listen", group: groupNetwork, kind: "HOST:PORT", usage: "where drivers and other workers connect; port 0 takes a free one",
			value: func(c *Config) value { return (*text)(&c.Listen) }, legal: func(c Config) string { return address(c.Listen) }},
		{key: "admin", group: groupNetwork, kind: "HOST:PORT", usage: "where livez, readyz, metrics and drain answer",
			value: func(c *Config) value { return (*text)(&c.Admin) }, legal: func(c Config) string { return address(c.Admin) }},
		{key: "chain.allow", group: groupNetwork, kind: "LIST", usage: "next hops that this worker may dial, as 10.1.0.0/16:7711,10.2.0.7:*; =SAN behind an entry is what the hop's certificate must name; none: it dials nobody",
			value: func(c *Config) value { return (*list)(&c.ChainAllow) }, legal: func(c Config) string { return allowFault(c.ChainAllow) }},
		{key: "ring.advertise", group: groupNetwork, kind: "HOST:PORT", usage: "where the last hop of a route reaches this worker when it is the first, to bring each token a trip over the chain earlier; port 0 is that of --listen; none: tokens come up the chain alone",
			value: func(c *Config) value { return (*text)(&c.RingAdvertise) }, legal: func(c Config) string { return advertiseFault(c.RingAdvertise) }},
		{key: "insecure", group: groupNetwork, usage: "listen on a non-loopback address although peers prove nothing",
			value: func(c *Config) value { return (*toggle)(&c.Insecure) }},
		{key: "keepalive", group: groupNetwork, kind: "TIME", usage: "interval of keepalives on links",
			value: func(c *Config) value { return (*duration)(&c.Keepalive) },
			legal: func(c Config) string { return within(c.Keepalive, time.Second, time.Hour) }},
	}
}

func computeOptions() []option {
	count := func(key, usage string, field func(*Config) *uint32, least, most uint32) option {
		return option{key: key, group: groupCompute, kind: "N", usage: usage,
			value: func(c *Config) value { return (*number)(field(c)) },
			legal: func(c Config) string { return between(*field(&c), least, most) }}
	}
	toggled := func(key, usage string, field func(*Config) *bool) option {
		return option{key: key, group: groupCompute, usage: usage, value: func(c *Config) value { return (*toggle)(field(c)) }}
	}
	return []option{
		count("sessions", "sessions at once; each has its room reserved; llama has at most 255", func(c *Config) *uint32 { return &c.Sessions }, 1, 4096),
		count("context", "longest context of a session, tokens", func(c *Config) *uint32 { return &c.Context }, 1, 1<<24),
		count("threads", "compute threads; the sum over all workers of a machine should not exceed its cores", func(c *Config) *uint32 { return &c.Threads }, 1, 1024),
		count("batch", "most tokens of one native call, and of one step", func(c *Config) *uint32 { return &c.Batch }, 1, 1<<16),
		count("micro_batch", "most tokens of one native micro-batch", func(c *Config) *uint32 { return &c.MicroBatch }, 1, 1<<16),
		{key: "cache_type", group: groupCompute, kind: "TYPE", usage: "element of the KV cache: f32, f16, q8_0 or q4_0; the last two with flash attention",
			value: func(c *Config) value { return (*text)(&c.CacheType) },
			legal: func(c Config) string { return oneOf(c.CacheType, "f32", "f16", "q8_0", "q4_0") }},
		toggled("flash_attention", "use flash attention", func(c *Config) *bool { return &c.FlashAttention }),
		toggled("mmap", "map the model file; false reads the own tensors into memory", func(c *Config) *bool { return &c.MemoryMap }),
		toggled("short_window", "layers with a sliding window keep little more than it sees: less memory, but going back needs checkpoints", func(c *Config) *bool { return &c.ShortWindow }),
		toggled("deterministic", "one session per native call: the same bits whoever else is served", func(c *Config) *bool { return &c.Deterministic }),
	}
}

func limitOptions() []option {
	size := func(key, usage string, field func(*Config) *uint64, least, most uint64) option {
		return option{key: key, group: groupLimits, kind: "SIZE", usage: usage,
			value: func(c *Config) value { return (*bytes64)(field(c)) },
			legal: func(c Config) string { return sizeBetween(*field(&c), least, most) }}
	}
	span := func(key, usage string, field func(*Config) *time.Duration, least, most time.Duration) option {
		return option{key: key, group: groupLimits, kind: "TIME", usage: usage,
			value: func(c *Config) value { return (*duration)(field(c)) },
			legal: func(c Config) string { return within(*field(&c), least, most) }}
	}
	count := func(key, usage string, field func(*Config) *uint32) option {
		return option{key: key, group: groupLimits, kind: "N", usage: usage,
			value: func(c *Config) value { return (*number)(field(c)) },
			legal: func(c Config) string { return between(*field(&c), 1, 1<<20) }}
	}
	return []option{
		{key: "window.steps", group: groupLimits, kind: "N", usage: "first window of a session, steps",
			value: func(c *Config) value { return (*number)(&c.WindowSteps) },
			legal: func(c Config) string { return between(c.WindowSteps, 1, 4096) }},
		size("window.bytes", "first window of a session", func(c *Config) *uint64 { return &c.WindowBytes }, 1<<16, 1<<40),
		size("window.worker_bytes", "windows of all sessions together", func(c *Config) *uint64 { return &c.WindowWorkerBytes }, 1<<16, 1<<44),
		{key: "window.max_steps", group: groupLimits, kind: "N", usage: "how far the window of a session grows with use, steps",
			value: func(c *Config) value { return (*number)(&c.WindowMaxSteps) },
			legal: func(c Config) string { return between(c.WindowMaxSteps, 1, 4096) }},
		size("window.max_bytes", "how far the window of a session grows with use", func(c *Config) *uint64 { return &c.WindowMaxBytes }, 1<<16, 1<<40),
		size("outgoing_bytes", "what may wait to be sent to all peers together", func(c *Config) *uint64 { return &c.OutgoingBytes }, 1<<20, 1<<44),
		size("kept_bytes", "caches that are kept as prefixes for later sessions of the same caller; 0: none are", func(c *Config) *uint64 { return &c.KeptBytes }, 0, 1<<44),
		{key: "message_bytes", group: groupLimits, kind: "SIZE", usage: "greatest gRPC message; larger boundaries are framed",
			value: func(c *Config) value { return (*bytes32)(&c.MessageBytes) },
			legal: func(c Config) string { return sizeBetween(uint64(c.MessageBytes), 1<<17, 1<<26) }},
		{key: "metadata_bytes", group: groupLimits, kind: "SIZE", usage: "greatest metadata of a call",
			value: func(c *Config) value { return (*bytes32)(&c.MetadataBytes) },
			legal: func(c Config) string { return sizeBetween(uint64(c.MetadataBytes), 1<<10, 1<<24) }},
		count("connection_streams", "calls that one connection may have under way", func(c *Config) *uint32 { return &c.Streams }),
		count("principal.opening", "sessions that one principal may be opening; who proves nothing is one principal per address", func(c *Config) *uint32 { return &c.Principal.Opening }),
		count("principal.sessions", "sessions that one principal may have, lingering ones included", func(c *Config) *uint32 { return &c.Principal.Sessions }),
		count("principal.streams", "calls that one principal may have under way", func(c *Config) *uint32 { return &c.Principal.Streams }),
		count("principal.requests", "calls and opens of one principal a second", func(c *Config) *uint32 { return &c.Principal.Requests.PerSecond }),
		count("principal.request_burst", "calls and opens of one principal at once, after a rest", func(c *Config) *uint32 { return &c.Principal.Requests.Burst }),
		count("principal.control", "control messages of one principal a second", func(c *Config) *uint32 { return &c.Principal.Control.PerSecond }),
		count("principal.control_burst", "control messages of one principal at once, after a rest", func(c *Config) *uint32 { return &c.Principal.Control.Burst }),
		span("handshake", "longest time that a connection takes to stand, and a stream to open", func(c *Config) *time.Duration { return &c.Handshake }, 10*time.Millisecond, 5*time.Minute),
		span("open_budget", "longest time this hop takes to open a session", func(c *Config) *time.Duration { return &c.OpenBudget }, 100*time.Millisecond, 5*time.Minute),
		span("idle", "a stream without a deadline may be silent for this long", func(c *Config) *time.Duration { return &c.Idle }, time.Second, 24*time.Hour),
		span("linger", "longest time that a cache outlives its link", func(c *Config) *time.Duration { return &c.Linger }, 0, 24*time.Hour),
		span("drain", "time that open sessions have when the worker drains", func(c *Config) *time.Duration { return &c.Drain }, 0, 24*time.Hour),
		span("probe.interval", "a probe step runs this often, so that readiness is true", func(c *Config) *time.Duration { return &c.ProbeInterval }, 100*time.Millisecond, time.Hour),
		span("probe.timeout", "a probe that takes longer makes the worker not ready", func(c *Config) *time.Duration { return &c.ProbeTimeout }, 10*time.Millisecond, time.Minute),
	}
}

func supervisionOptions() []option {
	return []option{
		{key: "log.level", group: groupLogs, kind: "LEVEL", usage: "debug, info, warn or error",
			value: func(c *Config) value { return (*level)(&c.LogLevel) }},
		{key: "log.format", group: groupLogs, kind: "FORMAT", usage: "text or json; logs go to standard error",
			value: func(c *Config) value { return (*text)(&c.LogFormat) },
			legal: func(c Config) string { return oneOf(c.LogFormat, "text", "json") }},
		{key: "announce", group: groupLogs, usage: "print one JSON line on standard output once the shard is ready",
			value: func(c *Config) value { return (*toggle)(&c.Announce) }},
		{key: "exit_with_stdin", group: groupLogs, usage: "drain and exit when standard input ends, so that a parent takes the worker with it",
			value: func(c *Config) value { return (*toggle)(&c.ExitWithStdin) }},
	}
}

// unless returns "" if ok, else what would be legal.
func unless(ok bool, legal string) string {
	if ok {
		return ""
	}
	return legal
}

func oneOf(got string, legal ...string) string {
	for _, l := range legal {
		if got == l {
			return ""
		}
	}
	return strings.Join(legal[:len(legal)-1], ", ") + " or " + legal[len(legal)-1]
}

func between(got, least, most uint32) string {
	return unless(least <= got && got <= most, fmt.Sprintf("%d to %d", least, most))
}

func sizeBetween(got, least, most uint64) string {
	return unless(least <= got && got <= most, fmt.Sprintf("%s to %s", showBytes(least), showBytes(most)))
}

func within(got, least, most time.Duration) string {
	return unless(least <= got && got <= most, fmt.Sprintf("%s to %s", showDuration(least), showDuration(most)))
}

// level is a slog.Level by name.
type level slog.Level

func (l *level) set(s string) error {
	if err := (*slog.Level)(l).UnmarshalText([]byte(s)); err != nil {
		return fmt.Errorf("debug, info, warn or error")
	}
	return nil
}

func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }

// number is a count.
type number uint32

func (n *number) set(s string) error {
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return fmt.Errorf("a whole number")
	}
	*n = number(v)
	return nil
}

func (n *number) String() string { return strconv.FormatUint(uint64(*n), 10) }
