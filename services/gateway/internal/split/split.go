// Package split is `dgr split`: it writes the shards of a model into files of their own, and verifies sets of such files.
//
// What must stay out: which layers go where (that is `dgr plan`), and the form of the files (libs/native/gguf).
package split

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/layers"
)

// Report is a set of shards. Sizes are bytes. It is also the form of --json.
type Report struct {
	Fingerprint string `json:"fingerprint"`
	Layers      uint32 `json:"layers"` // of the whole model
	Shards      []File `json:"shards"` // in the order of the route
	verified    bool
}

// File is the file of one shard.
type File struct {
	Path   string `json:"path"`
	First  uint32 `json:"first"`
	End    uint32 `json:"end"` // one past the last layer
	Bytes  uint64 `json:"bytes"`
	Layers string `json:"-"`
	State  string `json:"state"` // written, resumed, kept or verified
}

// Options say what to split.
type Options struct {
	Model   string
	Layers  []engine.LayerRange // empty: Workers says
	Workers uint32
	Out     string
}

// Shower is told how far the work is.
type Shower interface {
	Show(done, total uint64)
	Say(what string)
}

// Write writes the shards.
//
// Errors: those of gguf.Open, BuildManifest and WriteShard; UNSUPPORTED_ARCHITECTURE; a fault of the command line where the
// layers leave something out.
func Write(ctx context.Context, o Options, show Shower) (*Report, error) {
	m, err := gguf.Open(o.Model)
	if err != nil {
		return nil, err
	}
	if !gguf.Adapted(m.Architecture()) {
		return nil, engine.Errorf(engine.UnsupportedArchitecture, "%s has the architecture %s, which cannot be cut yet (%s can)", o.Model,
			m.Architecture(), strings.Join(gguf.AdaptedArchitectures(), ", "))
	}
	parts, err := o.parts(m)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, err
	}
	man, err := gguf.BuildManifest(ctx, m, nil, show.Show)
	if err != nil {
		return nil, err
	}
	r := &Report{Fingerprint: man.Fingerprint.String(), Layers: m.NLayer()}
	for _, p := range parts {
		path := filepath.Join(o.Out, name(m.Paths[0], p))
		show.Say("writing " + filepath.Base(path))
		w, err := m.WriteShard(ctx, man, gguf.Shard{Path: path, Layers: p}, show.Show)
		if err != nil {
			return nil, err
		}
		state := "written"
		switch {
		case w.Kept == m.OwnBytes(p):
			state = "kept"
		case w.Kept > 0:
			state = "resumed"
		}
		r.Shards = append(r.Shards, File{Path: path, First: p.First, End: p.End, Layers: layers.Show(p), Bytes: w.Size, State: state})
	}
	return r, nil
}

// parts are the shards to write: of a shard's file, those that divide it.
func (o Options) parts(m *gguf.Model) ([]engine.LayerRange, error) {
	if m.IsShard() {
		return nil, fail.Usagef("%s is a shard itself; split the whole model", o.Model)
	}
	if len(o.Layers) > 0 {
		return o.Layers, layers.Check(o.Layers, m.NLayer())
	}
	return layers.Divide(m.NLayer(), o.Workers, m.OwnBytes)
}

var partName = regexp.MustCompile(`-\d{5}-of-\d{5}$`)

// name is the file of a shard: `m.layers-0-12.gguf` of `m.gguf` or of `m-00001-of-00003.gguf`.
func name(model string, p engine.LayerRange) string {
	base := strings.TrimSuffix(filepath.Base(model), ".gguf")
	return fmt.Sprintf("%s.layers-%d-%d.gguf", partName.ReplaceAllString(base, ""), p.First, p.End)
}

// Verify reads all shards. model, if not empty, is what they must be shards of.
//
// Errors: those of gguf.Open and VerifyShards.
func Verify(ctx context.Context, paths []string, model string, show Shower) (*Report, error) {
	var shards []*gguf.Model
	for _, path := range paths {
		m, err := gguf.Open(path)
		if err != nil {
			return nil, err
		}
		if !m.IsShard() {
			return nil, engine.Errorf(engine.ShardMismatch, "%s is a whole model and no shard; dgr inspect --fingerprint names it", path)
		}
		shards = append(shards, m)
	}
	var whole *gguf.Fingerprint
	if model != "" {
		m, err := gguf.Open(model)
		if err != nil {
			return nil, err
		}
		man, err := gguf.BuildManifest(ctx, m, nil, show.Show)
		if err != nil {
			return nil, err
		}
		whole = &man.Fingerprint
	}
	show.Say("reading the shards")
	fingerprint, err := gguf.VerifyShards(ctx, shards, whole, show.Show)
	if err != nil {
		return nil, err
	}
	r := &Report{Fingerprint: fingerprint.String(), Layers: shards[0].NLayer(), verified: true}
	for _, m := range shards {
		held := m.Held()
		r.Shards = append(r.Shards, File{Path: m.Paths[0], First: held.First, End: held.End, Layers: layers.Show(held), Bytes: uint64(m.Parts[0].State.Size), State: "verified"})
	}
	return r, nil
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "layers\tsize\tstate\tfile")
	for _, f := range r.Shards {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Layers, humanize.IBytes(f.Bytes), f.State, f.Path)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	what := "shards of the model"
	if r.verified {
		what = "together they are the model"
	}
	_, err := fmt.Fprintf(w, "\n%s %s\n", what, r.Fingerprint)
	return err
}
