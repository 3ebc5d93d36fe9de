// Package sourcetree reads the Go files of the repository as syntax, tests and every build tag included, for checks that
// judge them. It judges nothing itself.
package sourcetree

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Prefix begins the import path of every package of ours; what follows is its folder from the root.
const Prefix = "github.com/distributed-gguf-runtime/dgr/"

// Tree is a set of Go files.
type Tree struct {
	Fset  *token.FileSet
	Files []*File
}

// File is one Go file.
type File struct {
	Path   string // from the root, with slashes
	Syntax *ast.File
	Lines  int
}

// Dir is the folder of the file from the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Test says whether the file is compiled for tests only.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Main says whether the file belongs to a program.
func (f *File) Main() bool { return f.Syntax.Name.Name == "main" }

// Generated says whether nobody edits the file.
func (f *File) Generated() bool {
	return strings.HasPrefix(f.Path, "gen/") || ast.IsGenerated(f.Syntax)
}

// Imports are the import paths of the file; those of ours are folders from the root.
func (f *File) Imports() []string {
	var all []string
	for _, i := range f.Syntax.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			name = i.Path.Value
		}
		all = append(all, strings.TrimPrefix(name, Prefix))
	}
	return all
}

// At is a place in the tree, as `libs/engine/step.go:12`.
func (t *Tree) At(n ast.Node) string {
	p := t.Fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// Add parses one file and puts it into the tree.
func (t *Tree) Add(name string, text []byte) error {
	if t.Fset == nil {
		t.Fset = token.NewFileSet()
	}
	syntax, err := parser.ParseFile(t.Fset, name, text, parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse a file of the tree: %w", err)
	}
	t.Files = append(t.Files, &File{Path: name, Syntax: syntax, Lines: strings.Count(string(text), "\n")})
	return nil
}

// Load reads every Go file of every module, and the magefile. Folders called testdata and folders with a go.mod of their
// own that go.work does not name are left out.
func Load(w *workspace.Workspace) (*Tree, error) {
	t := &Tree{}
	for _, m := range w.Modules {
		err := filepath.WalkDir(w.Path(m.Dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(w.Root, file)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if d.IsDir() {
				return skipFolder(file, name, m.Dir)
			}
			if !strings.HasSuffix(name, ".go") {
				return nil
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return t.Add(name, text)
		})
		if err != nil {
			return nil, fmt.Errorf("read the files of %s: %w", m.Dir, err)
		}
	}
	text, err := os.ReadFile(w.Path("magefile.go"))
	if err != nil {
		return nil, fmt.Errorf("read the magefile: %w", err)
	}
	return t, t.Add("magefile.go", text)
}

func skipFolder(file, name, module string) error {
	base := path.Base(name)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return filepath.SkipDir
	}
	if name != module {
		if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
			return filepath.SkipDir
		}
	}
	return nil
}
