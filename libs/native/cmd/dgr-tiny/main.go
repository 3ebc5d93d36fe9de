// Command dgr-tiny writes a random model of a chosen architecture and size, for tests and benchmarks.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := command()
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dgr-tiny:", strings.ReplaceAll(err.Error(), "\n", "; "))
		stop()
		os.Exit(1)
	}
}

// flags are the flags as given; a size of 0 is the architecture's default.
type flags struct {
	tiny.Spec
	typ    string
	tied   bool
	untied bool
	out    string
	opts   tiny.Options
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "dgr-tiny --arch llama --out model.gguf",
		Short: "Write a random GGUF model for tests and benchmarks",
		Long: "Writes a model with the metadata, tensors and tokenizer of an architecture and random weights. The same flags give the same bytes.\n\n" +
			"A model to measure with: dgr-tiny --arch llama --layers 16 --embd 1024 --heads 16 --kv-heads 8 --ff 2816 --vocab 32000 --type q8_0 --out big.gguf",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.Arch, "arch", "llama", "architecture: "+strings.Join(tiny.Archs(), ", "))
	fs.StringVarP(&f.out, "out", "o", "", "file to write (required)")
	fs.StringVar(&f.Name, "name", "", "general.name")
	fs.IntVar(&f.Layers, "layers", 0, "layers")
	fs.IntVar(&f.Embd, "embd", 0, "width of the hidden state")
	fs.IntVar(&f.Heads, "heads", 0, "attention heads")
	fs.IntVar(&f.KVHeads, "kv-heads", 0, "heads of the KV cache")
	fs.IntVar(&f.HeadLength, "head-length", 0, "length of a head (default: embd / heads, or the architecture's own)")
	fs.IntVar(&f.FF, "ff", 0, "width of the feed-forward part")
	fs.IntVar(&f.Vocab, "vocab", 0, "tokens of the vocabulary")
	fs.IntVar(&f.Context, "context", 0, "context length in the header")
	fs.IntVar(&f.SlidingWindow, "window", 0, "gemma3: width of the sliding window")
	fs.BoolVar(&f.tied, "tied", false, "use the token embedding as output matrix")
	fs.BoolVar(&f.untied, "untied", false, "write an output matrix")
	fs.StringVar(&f.typ, "type", "f32", "type of the matrices: f32, f16 or q8_0")
	fs.Uint64Var(&f.Seed, "seed", 1, "seed of the weights")
	fs.StringVar(&f.Claim, "claim", "", "architecture that the header names, to test refusals")
	fs.IntVar(&f.opts.Parts, "parts", 1, "files to split the model into")
	fs.BoolVar(&f.opts.HeaderFirst, "header-first", false, "with --parts: the first file holds only metadata")
	_ = cmd.MarkFlagRequired("out")
	cmd.MarkFlagsMutuallyExclusive("tied", "untied")
	return cmd
}

func (f *flags) run(cmd *cobra.Command) error {
	s, err := f.spec()
	if err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	bar := progressbar.NewOptions64(int64(s.Size()), progressbar.OptionSetWriter(cmd.ErrOrStderr()), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription("writing"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetVisibility(term.IsTerminal(int(os.Stderr.Fd()))))
	f.opts.Progress = func(done, _ uint64) { _ = bar.Set64(int64(done)) }
	paths, err := tiny.WriteWith(cmd.Context(), f.out, s, f.opts)
	_ = bar.Finish()
	if err != nil {
		return err
	}
	for _, p := range paths {
		fmt.Fprintln(cmd.OutOrStdout(), p)
	}
	return nil
}

// spec is the architecture's default with what was asked for put over it.
func (f *flags) spec() (tiny.Spec, error) {
	s, err := tiny.Default(f.Arch)
	if err != nil {
		return s, err
	}
	sized := f.Embd != 0 || f.Heads != 0
	for _, v := range []struct {
		to   *int
		from int
	}{
		{&s.Layers, f.Layers}, {&s.Embd, f.Embd}, {&s.Heads, f.Heads}, {&s.KVHeads, f.KVHeads}, {&s.FF, f.FF},
		{&s.Vocab, f.Vocab}, {&s.Context, f.Context}, {&s.SlidingWindow, f.SlidingWindow},
	} {
		if v.from != 0 {
			*v.to = v.from
		}
	}
	if sized && s.Heads > 0 {
		s.HeadLength = s.Embd / s.Heads
	}
	if f.HeadLength != 0 {
		s.HeadLength = f.HeadLength
	}
	if f.Name != "" {
		s.Name = f.Name
	}
	s.Tied = f.tied || s.Tied && !f.untied
	s.Seed, s.Claim = f.Seed, f.Claim
	types := map[string]gguf.Type{"f32": gguf.F32, "f16": gguf.F16, "q8_0": gguf.Q8_0}
	typ, ok := types[f.typ]
	if !ok {
		return s, fmt.Errorf("unknown type %q: choose f32, f16 or q8_0", f.typ)
	}
	s.Type = typ
	return s, nil
}
