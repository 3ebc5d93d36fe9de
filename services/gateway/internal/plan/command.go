package plan

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
)

const (
	maxMachines    = 64
	workerContext  = 2048 // what a worker that was told nothing offers
	workerSessions = 4
	workerBatch    = 512
	workerPort     = 7711
)

// flags are what the command line says.
type flags struct {
	Options
	model     string
	memory    []string
	addresses []string
	json      bool
}

// Command is `dgr plan`. A fault is the returned error, one sentence.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "plan --model MODEL.gguf --memory SIZE,SIZE",
		Short: "Work out which layers go to which machine",
		Long: "Works out which layers of a model go to which machine, from the memory that each has for DGR, and prints the commands that start the\n" +
			"workers. Nothing is started, and only the header of the model is read.\n\n" +
			"Layers are dealt so that all machines are about equally full; with --fewest as few machines as possible are used, since every\n" +
			"machine on the route adds to the time of a token.",
		Example: "  dgr plan --model m.gguf --memory 8GiB,4GiB\n  dgr plan --model m.gguf --memory 24GiB,16GiB,16GiB --addresses a:7711,b:7711,c:7711 --context 8192",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "GGUF file, or any of its parts")
	fs.StringSliceVar(&f.memory, "memory", nil, "memory of each machine, in the order of the route, as 8GiB,4GiB")
	fs.StringSliceVar(&f.addresses, "addresses", nil, "HOST:PORT of each machine's worker, in the same order (default HOST-1:7711,HOST-2:7711,…)")
	fs.Uint32Var(&f.Context, "context", 0, "longest context of a session, tokens (default 2048, or what the model was trained for if that is less)")
	fs.Uint32Var(&f.Sessions, "sessions", workerSessions, "sessions at once, 1 to 255")
	fs.StringVar(&f.CacheType, "cache-type", "f16", "element of the KV cache: f32, f16, q8_0 or q4_0")
	fs.Uint32Var(&f.MicroBatch, "micro-batch", workerBatch, "most tokens of one native micro-batch")
	fs.BoolVar(&f.FlashAttention, "flash-attention", false, "plan for workers with flash attention")
	fs.BoolVar(&f.Fewest, "fewest", false, "use as few machines as possible")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *flags) run(cmd *cobra.Command) error {
	memory, err := f.check()
	if err != nil {
		return err
	}
	m, err := gguf.Open(f.model)
	if err != nil {
		return err
	}
	o := f.Options
	if o.Context == 0 {
		o.Context = workerContext
		if n := m.TrainContext(); n > 0 {
			o.Context = min(o.Context, n)
		}
	}
	p, err := Make(m, memory, o)
	if err != nil {
		return err
	}
	p.address(f.addresses, o)
	if f.json {
		return p.JSON(cmd.OutOrStdout())
	}
	return p.Text(cmd.OutOrStdout())
}

// check reports all faults of the flags at once, and returns the memory of the machines in bytes.
func (f *flags) check() ([]uint64, error) {
	var faults []string
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(f.model == "", "--model is missing: give the path of a GGUF file")
	fault(len(f.memory) == 0, "--memory is missing: give the memory of each machine, as 8GiB,4GiB")
	fault(len(f.memory) > maxMachines, "--memory names %d machines: give at most %d", len(f.memory), maxMachines)
	memory := make([]uint64, len(f.memory))
	for i, s := range f.memory {
		n, err := humanize.ParseBytes(s)
		fault(err != nil || n == 0 || n > 1<<50, "--memory %q is no size: give it as 8GiB", s)
		memory[i] = n
	}
	fault(len(f.addresses) > 0 && len(f.addresses) != len(f.memory), "--addresses names %d workers and --memory %d machines: give one address for each",
		len(f.addresses), len(f.memory))
	for i, a := range f.addresses {
		fault(!validAddress(a), "--addresses %q is no HOST:PORT: give it as 10.0.0.7:7711", a)
		fault(slices.Index(f.addresses, a) < i, "--addresses names %s twice: give each worker an address of its own", a)
	}
	fault(f.Context > 1<<24, "--context %d is too long: give at most %d", f.Context, 1<<24)
	fault(f.Sessions < 1 || f.Sessions > 255, "--sessions %d: give 1 to 255", f.Sessions)
	fault(f.MicroBatch < 1 || f.MicroBatch > workerBatch, "--micro-batch %d: give 1 to %d", f.MicroBatch, workerBatch)
	fault(!slices.Contains(footprint.CacheTypes(), f.CacheType), "--cache-type %q: give f32, f16, q8_0 or q4_0", f.CacheType)
	fault(footprint.Quantised(f.CacheType) && !f.FlashAttention, "--cache-type %s needs flash attention: add --flash-attention", f.CacheType)
	if len(faults) > 0 {
		return nil, fail.Usagef("%s", strings.Join(faults, "; "))
	}
	return memory, nil
}

func validAddress(a string) bool {
	host, port, err := net.SplitHostPort(a)
	n, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && host != "" && n > 0
}
