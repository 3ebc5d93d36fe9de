package tiny

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Options says how a model is laid out in files.
type Options struct {
	Parts       int  // 0 or 1: one file
	HeaderFirst bool // with parts: the first holds no tensor
	Progress    func(done, total uint64)
}

// Write writes a model into one file.
func Write(ctx context.Context, path string, s Spec) error {
	_, err := WriteWith(ctx, path, s, Options{})
	return err
}

// WriteWith writes a model as o asks for and returns the paths of its files. The weights stream: memory does not grow with
// the model.
func WriteWith(ctx context.Context, path string, s Spec, o Options) ([]string, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	w := gguf.Writer{Progress: o.Progress}
	if o.Parts > 1 {
		return w.WriteParts(ctx, path, o.Parts, o.HeaderFirst, s.keys(), s.tensors())
	}
	return []string{path}, w.Write(ctx, path, s.keys(), s.tensors())
}

// Size is the bytes of all tensors of a valid Spec.
func (s Spec) Size() (n uint64) {
	for _, t := range s.tensors() {
		size, _ := t.Size()
		n += size
	}
	return n
}

// WriteHollow writes the header of a model and, in place of its weights, a hole that takes no room on most file systems:
// a model of any size to look at, not to load.
func WriteHollow(path string, s Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return gguf.WriteHollow(path, s.keys(), s.tensors())
}
