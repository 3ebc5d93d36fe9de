// Package fake is a ShardEngine without weights: deterministic arithmetic on token ids and layer numbers with the real
// semantics of sessions, caches, batches and cancelling, so that everything above an engine can be tested without a model.
//
// What a layer does depends on the row that it gets, on its own number and on every token of the session before, so a
// chain of fakes gives what one fake gives, bit for bit, for every cut, and a hop whose cache is wrong shows in its next
// row. Boundary values are whole numbers below 2^24, exact in float32.
//
// Faults are asked of it with a Script. What must stay out: anything that makes it behave better than a real engine may.
package fake

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Scheme begins a model name that Parse understands, as `fake:layers=6,seed=7`.
const Scheme = "fake"

// minWidth is the least boundary width that carries a row's state.
const minWidth = 4

// Options are one imaginary model and how an engine treats it.
type Options struct {
	Architecture string                 // as it stands in ShardInfo
	Seed         uint64                 // the "weights": another seed is another model
	NLayer       uint32                 // layers of the whole model, 1 to 65536
	Vocab        uint32                 // vocabulary size, MinVocab to 2^20
	Width        uint32                 // boundary width, float32 values a row, 4 to 65536
	TrainContext uint32                 // tokens; 0: the header does not say
	Truncate     engine.TruncateAbility // how caches go back
	Window       uint32                 // tokens that a sliding window sees; with TruncateWindow, else 0
	Copy         engine.CopyAbility     // what of a cache can be copied; any length only where it goes back to any
	Marks        uint32                 // checkpoints that a session may hold, 1 or more unless it goes back to any length
	EndAt        engine.Pos             // cache length from which the model ends its answer; 0: never
	ChatTemplate bool                   // what TextEngine.HasChatTemplate says
	Script       Script                 // faults; none when empty
}

// Default is a model of four layers that goes back to any length and has no faults.
func Default() Options {
	return Options{
		Architecture: Scheme, Seed: 1, NLayer: 4, Vocab: MinVocab, Width: 8, TrainContext: 4096,
		Truncate: engine.TruncateAny, Copy: engine.CopyPrefix,
	}
}

// Validate reports everything that is wrong, joined.
func (o Options) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(o.Architecture != "", "the architecture is empty; name one, as %q", Scheme)
	check(o.NLayer >= 1 && o.NLayer <= 1<<16, "layers is %d; it must be 1 to 65536", o.NLayer)
	check(o.Vocab >= MinVocab && o.Vocab <= 1<<20, "vocab is %d; it must be %d to %d", o.Vocab, MinVocab, 1<<20)
	check(o.Width >= minWidth && o.Width <= 1<<16, "width is %d; it must be %d to 65536", o.Width, minWidth)
	check(o.Truncate >= engine.TruncateAny && o.Truncate <= engine.TruncateNone, "truncate is %d; it must be any, window or none", o.Truncate)
	check((o.Truncate == engine.TruncateWindow) == (o.Window > 0), "window is %d; it belongs to truncate=window and must be 1 or more there", o.Window)
	check(o.Truncate == engine.TruncateAny || o.Marks > 0, "marks is 0; a cache that does not go back to any length needs 1 or more")
	check(o.Copy == engine.CopyWhole || o.Copy == engine.CopyPrefix && o.Truncate == engine.TruncateAny,
		"copy is %d; it must be whole, or prefix with truncate=any", o.Copy)
	return errors.Join(faults...)
}

// Fingerprint names the imaginary model: equal for all that decides its tokens, different for anything else.
func (o Options) Fingerprint() [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "dgr fake model 1\n%s\n%d %d %d %d %d",
		o.Architecture, o.Seed, o.NLayer, o.Vocab, o.Width, o.EndAt))
}

// Parse reads a model name: `fake`, or `fake:` and options apart by commas. The options are architecture, seed, layers,
// vocab, width, train, truncate (any, window or none), copy (prefix or whole; by truncate if not named), window, marks, end, chat (true or false) and script (last of all,
// for it may hold commas). What is not named is as in Default.
func Parse(name string) (Options, error) {
	o := Default()
	o.Copy = 0
	rest, ok := strings.CutPrefix(name, Scheme)
	if !ok || rest != "" && rest[0] != ':' {
		return Options{}, fmt.Errorf("%q is no fake model; write fake, or fake:layers=6,seed=7", name)
	}
	rest = strings.TrimPrefix(rest, ":")
	for rest != "" {
		var field string
		if strings.HasPrefix(rest, "script=") {
			field, rest = rest, ""
		} else {
			field, rest, _ = strings.Cut(rest, ",")
		}
		key, value, _ := strings.Cut(field, "=")
		if err := o.set(key, value); err != nil {
			return Options{}, fmt.Errorf("fake model %q: %w", name, err)
		}
	}
	if o.Copy == 0 {
		o.Copy = engine.CopyWhole
		if o.Truncate == engine.TruncateAny {
			o.Copy = engine.CopyPrefix
		}
	}
	if err := o.Validate(); err != nil {
		return Options{}, fmt.Errorf("fake model %q: %w", name, err)
	}
	return o, nil
}

func (o *Options) set(key, value string) error {
	numbers := map[string]*uint32{
		"layers": &o.NLayer, "vocab": &o.Vocab, "width": &o.Width, "train": &o.TrainContext, "window": &o.Window,
		"marks": &o.Marks, "end": (*uint32)(&o.EndAt),
	}
	var err error
	switch key {
	case "architecture":
		o.Architecture = value
	case "seed":
		o.Seed, err = strconv.ParseUint(value, 10, 64)
	case "chat":
		o.ChatTemplate, err = strconv.ParseBool(value)
	case "script":
		o.Script, err = ParseScript(value)
	case "truncate":
		abilities := map[string]engine.TruncateAbility{
			"any": engine.TruncateAny, "window": engine.TruncateWindow, "none": engine.TruncateNone,
		}
		o.Truncate = abilities[value]
	case "copy":
		o.Copy = map[string]engine.CopyAbility{"prefix": engine.CopyPrefix, "whole": engine.CopyWhole}[value]
		if o.Copy == 0 {
			err = errors.New("it must be prefix or whole")
		}
	default:
		target, known := numbers[key]
		if !known {
			return fmt.Errorf("there is no option %q", key)
		}
		var n uint64
		n, err = strconv.ParseUint(value, 10, 32)
		*target = uint32(n)
	}
	if err != nil {
		return fmt.Errorf("option %s=%s: %w", key, value, err)
	}
	return nil
}

// Factory makes engines of one imaginary model. The script counts calls over all engines of the factory, so that a fault
// of the nth call strikes once and the engine made after it works. Illegal options are an error of every call.
func Factory(options Options) engine.Factory {
	faults := newFaults(options.Script)
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		if err := options.Validate(); err != nil {
			return nil, nil, engine.Errorf(engine.Malformed, "the fake's options are illegal: %w", err)
		}
		e := newEngine(options, faults)
		return e, &text{engine: e}, nil
	}
}
