package tablegen

import (
	"bytes"
	"embed"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
)

//go:embed templates/*.tmpl
var templates embed.FS

// RevisionsFile and the taxonomy are no lifecycles.
const (
	RevisionsFile = "revisions.v1.yaml"
	taxonomyFile  = "errors.v1.yaml"
)

// Generate reads every table of dir and returns the files of package tables, and the reference page of the errors: name
// to content, formatted.
// display is how dir is called in messages.
func Generate(dir, display string) (map[string][]byte, error) {
	taxonomy, revisions, lifecycles, err := Read(dir, display)
	if err != nil {
		return nil, err
	}
	parts := []struct {
		name, template string
		data           any
	}{
		{"errors.go", "errors.tmpl", taxonomy}, {"ERRORS.md", "errors.md.tmpl", taxonomy},
		{"revisions.go", "revisions.tmpl", revisions}, {"doc.go", "doc.tmpl", nil},
	}
	out := map[string][]byte{}
	for _, p := range parts {
		if out[p.name], err = render(p.template, p.data); err != nil {
			return nil, err
		}
	}
	for _, table := range lifecycles {
		if out[table.Table+".go"], err = render("lifecycle.tmpl", table); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Read reads and checks every table of dir; display is how dir is called in messages.
func Read(dir, display string) (*Taxonomy, *Revisions, []*Lifecycle, error) {
	read := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }
	data, err := read(taxonomyFile)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read the error taxonomy: %w", err)
	}
	taxonomy, err := ParseTaxonomy(display+"/"+taxonomyFile, data)
	if err != nil {
		return nil, nil, nil, err
	}
	if data, err = read(RevisionsFile); err != nil {
		return nil, nil, nil, fmt.Errorf("read the revisions: %w", err)
	}
	revisions, err := ParseRevisions(display+"/"+RevisionsFile, data, taxonomy)
	if err != nil {
		return nil, nil, nil, err
	}
	names, err := lifecycleFiles(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	var lifecycles []*Lifecycle
	for _, name := range names {
		if data, err = read(name); err != nil {
			return nil, nil, nil, fmt.Errorf("read a lifecycle table: %w", err)
		}
		table, err := ParseLifecycle(display+"/"+name, data, taxonomy)
		if err != nil {
			return nil, nil, nil, err
		}
		if want := table.Table + ".v1.yaml"; want != name {
			return nil, nil, nil, fmt.Errorf("%s/%s: its table is %q; the file must be called %s", display, name, table.Table, want)
		}
		lifecycles = append(lifecycles, table)
	}
	return taxonomy, revisions, lifecycles, nil
}

// lifecycleFiles lists the lifecycle tables of dir in alphabetical order.
func lifecycleFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".v1.yaml") && e.Name() != taxonomyFile && e.Name() != RevisionsFile {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

func render(name string, data any) ([]byte, error) {
	funcs := template.FuncMap{
		"goName": goName,
		"grpcName": func(name string) string {
			c, _ := grpcCode(name)
			return "codes." + c.String()
		},
		"quote": func(s string) string { return fmt.Sprintf("%q", s) },
	}
	t, err := template.New(name).Funcs(funcs).ParseFS(templates, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse template %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("run template %s: %w", name, err)
	}
	if strings.HasSuffix(name, ".md.tmpl") {
		return b.Bytes(), nil
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format what template %s gave: %w", name, err)
	}
	return text, nil
}
