package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

func sortTypes(list []Type) {
	slices.SortStableFunc(list, func(a, b Type) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// Text writes the report for people.
func (r Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("model", "%s", r.title())
	row("architecture", "%s, %s", r.Architecture, r.cut())
	row("layers", "%s", r.layers())
	row("parameters", "%s (%s)", humanize.Comma(int64(r.Parameters)), parameters(r.Parameters))
	row("weights", "%s (%s)", humanize.IBytes(r.Bytes), r.typeList())
	row("hidden state", "%d values, a boundary of %s a token", r.Embedding, humanize.IBytes(4*uint64(r.Embedding)))
	row("attention", "%d heads, %d KV heads%s", r.Heads, r.KVHeads, r.window())
	row("KV cache", "%s a token and session with f16", humanize.IBytes(r.cacheToken()))
	row("vocabulary", "%s tokens, tokenizer %s", humanize.Comma(int64(r.Vocab)), orNone(r.Tokenizer))
	row("context", "%s", r.context())
	row("chat template", "%s", map[bool]string{true: "yes", false: "none"}[r.ChatTemplate])
	row("embeddings", "%s", map[bool]string{
		true:  "tied: head and tail both load the token embedding",
		false: "not tied: the tail loads an output matrix of its own",
	}[r.Tied])
	if r.Fingerprint != "" {
		row("fingerprint", "%s", r.Fingerprint)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := r.partTable(w); err != nil {
		return err
	}
	return r.sectionTable(w)
}

func (r Report) partTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nfile size\ttensors\t  file\n")
	for _, p := range r.Parts {
		fmt.Fprintf(t, "%s\t%d\t  %s\n", humanize.IBytes(p.Bytes), p.Tensors, filepath.Base(p.Path))
	}
	return t.Flush()
}

func (r Report) sectionTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nsection\ttensors\tweights\tcache/token\t\n")
	for _, s := range r.Sections {
		name := s.Name
		if s.Layer != nil {
			name = fmt.Sprintf("layer %d", *s.Layer)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t\n", name, s.Tensors, humanize.IBytes(s.Bytes), humanize.IBytes(s.CacheToken))
	}
	return t.Flush()
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r Report) cut() string {
	if r.Cuttable {
		return "can be cut between any two layers"
	}
	return "cannot be cut yet (can be: " + strings.Join(gguf.AdaptedArchitectures(), ", ") + ")"
}

func (r Report) layers() string {
	if r.Held != "" {
		return fmt.Sprintf("%s of %d: this file is one shard", r.Held, r.Layers)
	}
	return fmt.Sprint(r.Layers)
}

func (r Report) typeList() string {
	var list []string
	for _, t := range r.Types {
		list = append(list, fmt.Sprintf("%s in %d tensors: %s", t.Name, t.Tensors, humanize.IBytes(t.Bytes)))
	}
	return strings.Join(list, ", ")
}

func (r Report) window() string {
	if r.Window == 0 {
		return ""
	}
	return fmt.Sprintf(", some layers see the last %d tokens", r.Window)
}

func (r Report) context() string {
	if r.Context == 0 {
		return "the header does not say"
	}
	return fmt.Sprintf("trained for %s tokens", humanize.Comma(int64(r.Context)))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// parameters is as `7.24 B`, with the letters that people use for models.
func parameters(n uint64) string {
	return strings.Replace(strings.TrimSpace(humanize.SIWithDigits(float64(n), 2, "")), "G", "B", 1)
}
