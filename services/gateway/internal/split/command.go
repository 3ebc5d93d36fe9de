package split

import (
	"encoding/json"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/layers"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/progress"
)

// flags are what the command line says.
type flags struct {
	layers  string
	workers uint32
	out     string
	verify  bool
	model   string
	json    bool
}

// Command is `dgr split`. A fault is the returned error, one sentence.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "split MODEL.gguf",
		Short: "Write the file that each worker needs, with its layers only",
		Long: "Writes one GGUF file per shard: the tensors of its layers and no others, and what proves that they are the model's. A machine then\n" +
			"needs the file of its own shard alone, and the workers still know that they serve the same model.\n\n" +
			"Give the layers as dgr plan says them, or a number of workers that share the bytes evenly. A file that is there already and right\n" +
			"is kept, so that a run that was stopped can be started again; any other file is never replaced.\n\n" +
			"With --verify it reads the files of shards instead and says whether they are one whole model.",
		Example: "  dgr split model.gguf --layers 0:12,12:32 --out shards\n  dgr split model-00001-of-00003.gguf --workers 4\n" +
			"  dgr split --verify shards/*.gguf\n  dgr split --verify --model model.gguf shards/*.gguf",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.layers, "layers", "", "layers of each shard, as 0:12,12:32; the last end may be left out")
	fs.Uint32Var(&f.workers, "workers", 0, "how many shards, about equal in bytes, where --layers does not say")
	fs.StringVar(&f.out, "out", "", "folder of the shards; it is made if it is not there (default: that of the model)")
	fs.BoolVar(&f.verify, "verify", false, "read shards and say whether they are one whole model")
	fs.StringVar(&f.model, "model", "", "with --verify: the model that they must be shards of")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *flags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(args); err != nil {
		return err
	}
	bar := progress.New(cmd.ErrOrStderr(), "reading the model")
	defer bar.Finish()
	if f.verify {
		r, err := Verify(cmd.Context(), args, f.model, bar)
		bar.Finish()
		return f.print(cmd.OutOrStdout(), r, err)
	}
	o := Options{Model: args[0], Workers: f.workers, Out: f.out}
	if o.Out == "" {
		o.Out = filepath.Dir(args[0])
	}
	if f.layers != "" {
		parts, err := layers.Parse(f.layers)
		if err != nil {
			return err
		}
		o.Layers = parts
	}
	r, err := Write(cmd.Context(), o, bar)
	bar.Finish()
	return f.print(cmd.OutOrStdout(), r, err)
}

// check finds what does not go together.
func (f *flags) check(args []string) error {
	switch {
	case f.verify && (f.layers != "" || f.workers != 0 || f.out != ""):
		return fail.Usagef("--verify writes nothing: leave out --layers, --workers and --out")
	case f.verify:
		return nil
	case f.model != "":
		return fail.Usagef("--model goes with --verify; the model to split stands without a flag")
	case len(args) > 1:
		return fail.Usagef("one model can be split at a time, and %d are named; any part of a model names it", len(args))
	case f.layers == "" && f.workers == 0:
		return fail.Usagef("nothing says where to cut; give --layers, as dgr plan says them, or --workers")
	case f.layers != "" && f.workers != 0:
		return fail.Usagef("--layers and --workers both say how many shards there are; give one")
	}
	return nil
}

func (f *flags) print(w io.Writer, r *Report, err error) error {
	if err != nil {
		return err
	}
	if f.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.Text(w)
}
