package fixturegen

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ReservedPrefix begins the case of a message that is well formed but uses what is reserved.
const ReservedPrefix = "reserved_"

// only is the case of a message that has one fixture.
const only = "only"

// Fixture is one golden message.
type Fixture struct {
	Case    string // what sets it apart from others of its type, in snake_case; empty: there is no other
	Message proto.Message
}

// Dir is the folder of the fixture: the short name of its message type.
func (f Fixture) Dir() string { return string(f.Message.ProtoReflect().Descriptor().Name()) }

// Name is as `SessionRequest/close`.
func (f Fixture) Name() string {
	if f.Case == "" {
		return f.Dir() + "/" + only
	}
	return f.Dir() + "/" + f.Case
}

// All is every fixture, in alphabetical order.
func All() []Fixture {
	all := slices.Concat(workerService(), shardService(), textService(), ringService(), requests(), responses(), everyError())
	slices.SortFunc(all, func(a, b Fixture) int { return bytes.Compare([]byte(a.Name()), []byte(b.Name())) })
	return all
}

// Binary is the wire form, with fields in order of their numbers.
func Binary(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// JSON is the canonical JSON form, indented by two spaces, with a line break at the end. protojson varies its white space
// on purpose, so it is written anew.
func JSON(m proto.Message) ([]byte, error) {
	loose, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var tight, text bytes.Buffer
	if err := json.Compact(&tight, loose); err != nil {
		return nil, err
	}
	if err := json.Indent(&text, tight.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	text.WriteByte('\n')
	return text.Bytes(), nil
}

//go:embed fixtures.go.txt
var source embed.FS

// Write makes package fixtures in out, which is emptied first.
func Write(out string) error {
	files := map[string][]byte{}
	for _, f := range All() {
		if _, double := files[f.Name()+".binpb"]; double {
			return fmt.Errorf("two fixtures are called %s", f.Name())
		}
		binary, err := Binary(f.Message)
		if err != nil {
			return fmt.Errorf("write %s in binary: %w", f.Name(), err)
		}
		text, err := JSON(f.Message)
		if err != nil {
			return fmt.Errorf("write %s in JSON: %w", f.Name(), err)
		}
		files[f.Name()+".binpb"], files[f.Name()+".json"] = binary, text
	}
	code, err := source.ReadFile("fixtures.go.txt")
	if err != nil {
		return fmt.Errorf("read the text of package fixtures: %w", err)
	}
	files["fixtures.go"] = code
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("empty the output folder: %w", err)
	}
	for name, data := range files {
		path := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make a folder of fixtures: %w", err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return fmt.Errorf("write a fixture: %w", err)
		}
	}
	return nil
}
