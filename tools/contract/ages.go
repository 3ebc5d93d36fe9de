package contract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

// proto package of the contract.
const pkg = "dgr.worker.v1"

// Files are the proto files as they are now, with what they import.
func (c Contract) Files(ctx context.Context) (*descriptorpb.FileDescriptorSet, error) {
	dir, err := os.MkdirTemp("", "dgr-contract-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the image: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "image.binpb")
	if err := c.image(ctx, file); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the image: %w", err)
	}
	files := &descriptorpb.FileDescriptorSet{}
	return files, proto.Unmarshal(data, files)
}

// FrozenFiles are the proto files of a frozen revision, with what they import.
func (c Contract) FrozenFiles(revision int) (*descriptorpb.FileDescriptorSet, error) {
	return readImage(filepath.Join(c.baseline(revision), imageFile))
}

func readImage(file string) (*descriptorpb.FileDescriptorSet, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a frozen contract: %w", err)
	}
	files := &descriptorpb.FileDescriptorSet{}
	// What buf notes in an image beside the descriptors is not asked for.
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, files); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return files, nil
}

// ages says of each field and enum value in which revision it was first.
type ages map[string]int

func newAges() ages { return ages{} }

// add notes the elements of a revision; revisions come in order.
func (a ages) add(files *descriptorpb.FileDescriptorSet, revision int) {
	note := func(name string) {
		if _, old := a[name]; !old {
			a[name] = revision
		}
	}
	var message func(path string, m *descriptorpb.DescriptorProto)
	enum := func(path string, e *descriptorpb.EnumDescriptorProto) {
		for _, v := range e.GetValue() {
			note(path + v.GetName())
		}
	}
	message = func(path string, m *descriptorpb.DescriptorProto) {
		path += m.GetName() + "."
		for _, f := range m.GetField() {
			note(path + f.GetName())
		}
		for _, e := range m.GetEnumType() {
			enum(path, e)
		}
		for _, n := range m.GetNestedType() {
			message(path, n)
		}
	}
	for _, f := range files.GetFile() {
		if f.GetPackage() != pkg {
			continue
		}
		for _, e := range f.GetEnumType() {
			enum("", e)
		}
		for _, m := range f.GetMessageType() {
			message("", m)
		}
	}
}

// keptBy finds elements of frozen revisions that are gone.
func (a ages) keptBy(now ages) error {
	var gone []string
	for name, age := range a {
		if now[name] == 0 {
			gone = append(gone, fmt.Sprintf("%s of revision %d is gone from the proto files", name, age))
		}
	}
	slices.Sort(gone)
	if len(gone) == 0 {
		return nil
	}
	return errors.New(strings.Join(gone, "\n"))
}

// judge compares with what the tables say; frozen is the number of frozen revisions. Fields of a message that is itself younger
// need no line: whoever knows the message knows them.
func (a ages) judge(r *tablegen.Revisions, frozen int) error {
	said := map[string]int{}
	var found []error
	for _, add := range r.Added {
		said[add.Name()] = add.Since
		if age, exists := a[add.Name()]; !exists {
			found = append(found, fmt.Errorf("%s is named in the tables, but no proto file has it", add.Name()))
		} else if age != add.Since {
			found = append(found, fmt.Errorf("%s is since %d in the tables, but came with revision %d", add.Name(), add.Since, age))
		}
	}
	born := a.messages()
	var silent []string
	for name, age := range a {
		owner, _, nested := strings.Cut(name, ".")
		if said[name] == 0 && age > 1 && !(nested && born[owner] == age) {
			silent = append(silent, name)
		}
	}
	slices.Sort(silent)
	for _, name := range silent {
		found = append(found, fmt.Errorf("%s came with revision %d, but the tables do not say so: add it to %s (an error code: its since)", name, a[name], tablegen.RevisionsFile))
	}
	return errors.Join(found...)
}

// messages says in which revision each message had its first field.
func (a ages) messages() map[string]int {
	born := map[string]int{}
	for name, age := range a {
		owner, _, nested := strings.Cut(name, ".")
		if first, known := born[owner]; nested && (!known || age < first) {
			born[owner] = age
		}
	}
	return born
}
