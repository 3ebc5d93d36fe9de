package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Pin says which source is built, and where it may come from.
type Pin struct {
	Name    string     `json:"name"`    // for messages
	Tag     string     `json:"tag"`     // upstream's name of the version
	Tree    string     `json:"tree"`    // git tree hash, 40 hexadecimal digits: the identity
	Sources []Location `json:"sources"` // tried in this order

	sum string // SHA-256 of the file, hexadecimal
}

// Kind is how a Location is read.
type Kind string

// The kinds.
const (
	KindGit  Kind = "git"  // a git repository
	KindNPM  Kind = "npm"  // a git bundle inside an npm package
	KindPath Kind = "path" // a repository, bundle or plain directory that an environment variable names
)

// Location is one place that the source may come from. Which fields are set depends on Kind.
type Location struct {
	Kind       Kind   `json:"kind"`
	Repository string `json:"repository,omitempty"` // git: URL
	Ref        string `json:"ref,omitempty"`        // git: full name of the tag
	Package    string `json:"package,omitempty"`    // npm: name
	Version    string `json:"version,omitempty"`    // npm: exact version
	Bundle     string `json:"bundle,omitempty"`     // npm: path inside the package
	Integrity  string `json:"integrity,omitempty"`  // npm: sha512-BASE64 of the package file
	Variable   string `json:"variable,omitempty"`   // path: name of the environment variable
}

// String names the location for a person.
func (l Location) String() string {
	switch l.Kind {
	case KindGit:
		return "git repository " + l.Repository
	case KindNPM:
		return fmt.Sprintf("npm package %s@%s", l.Package, l.Version)
	case KindPath:
		return "path in $" + l.Variable
	}
	return fmt.Sprintf("source of unknown kind %q", string(l.Kind))
}

var treeHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

func readPin(file string) (Pin, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Pin{}, fmt.Errorf("read the pin: %w", err)
	}
	var p Pin
	if err := strictJSON(data, &p); err != nil {
		return Pin{}, fmt.Errorf("the pin %s is not valid: %w", file, err)
	}
	p.sum = sumHex(data)
	if faults := p.faults(); len(faults) > 0 {
		return Pin{}, fmt.Errorf("the pin %s is not valid: %s", file, strings.Join(faults, "; "))
	}
	return p, nil
}

func (p Pin) faults() []string {
	var faults []string
	if p.Name == "" || p.Tag == "" {
		faults = append(faults, "name and tag must be set")
	}
	if !treeHash.MatchString(p.Tree) {
		faults = append(faults, fmt.Sprintf("tree %q is not 40 hexadecimal digits", p.Tree))
	}
	if len(p.Sources) == 0 {
		faults = append(faults, "sources must name at least one place")
	}
	for i, l := range p.Sources {
		if !l.complete() {
			faults = append(faults, fmt.Sprintf("sources[%d] (%s) lacks a field of its kind", i, l))
		}
	}
	return faults
}

func (l Location) complete() bool {
	switch l.Kind {
	case KindGit:
		return l.Repository != "" && l.Ref != ""
	case KindNPM:
		return l.Package != "" && l.Version != "" && l.Bundle != "" && strings.HasPrefix(l.Integrity, "sha512-")
	case KindPath:
		return l.Variable != ""
	}
	return false
}

// strictJSON refuses unknown fields and anything behind the value.
func strictJSON(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}

// findModule is the directory with pin.json: start itself, its libs/native, or the same of a parent.
func findModule(start string) (string, error) {
	dir, err := filepath.Abs(start)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		for _, candidate := range []string{d, filepath.Join(d, "libs", "native")} {
			if _, err := os.Stat(filepath.Join(candidate, pinFile)); err == nil {
				return candidate, nil
			}
		}
		if filepath.Dir(d) == d {
			return "", fmt.Errorf("no libs/native/%s at or above %s; run this inside the repository", pinFile, dir)
		}
	}
}
