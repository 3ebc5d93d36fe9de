package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

const (
	baselineDir = "baseline"
	imageFile   = "image.txtpb"
	tablesDir   = "tables"
)

// Contract is a folder like contracts, and the buf that reads it.
type Contract struct {
	Dir string // absolute
	Buf string // path of the program
}

// Revision is the greatest that the tables name.
func (c Contract) Revision() (int, error) {
	t, err := readTables(filepath.Join(c.Dir, tablesDir))
	if err != nil {
		return 0, err
	}
	return t.revisions.Max, nil
}

// Freeze writes the greatest revision down as a baseline and returns its folder. One that is frozen already stays as it is,
// and so does everything where the contract takes back what an older one says.
func (c Contract) Freeze(ctx context.Context) (string, error) {
	revision, err := c.Revision()
	if err != nil {
		return "", err
	}
	dir := c.baseline(revision)
	if _, err := os.Stat(dir); err == nil {
		return "", fmt.Errorf("revision %d is frozen in %s, and a released contract never changes; raise max in %s for the next one", revision, dir, tablegen.RevisionsFile)
	}
	if err := c.Check(ctx); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the baseline: %w", err)
	}
	if err := c.image(ctx, filepath.Join(dir, imageFile)); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	if err := os.CopyFS(filepath.Join(dir, tablesDir), os.DirFS(filepath.Join(c.Dir, tablesDir))); err != nil {
		return "", errors.Join(fmt.Errorf("copy the tables: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// Check finds what the contract takes back of each frozen revision, and what it added without saying since when. Its error
// names every element. Without a baseline there is nothing to find.
func (c Contract) Check(ctx context.Context) error {
	frozen, err := c.Frozen()
	if err != nil || len(frozen) == 0 {
		return err
	}
	now, err := readTables(filepath.Join(c.Dir, tablesDir))
	if err != nil {
		return err
	}
	var found []error
	if last := len(frozen); now.revisions.Max != last && now.revisions.Max != last+1 {
		found = append(found, fmt.Errorf("max is %d in %s; after the frozen revision %d it is %d or %d", now.revisions.Max, tablegen.RevisionsFile, last, last, last+1))
	}
	files, err := c.Files(ctx)
	if err != nil {
		return errors.Join(append(found, err)...)
	}
	ages, present := newAges(), newAges()
	present.add(files, len(frozen)+1)
	for _, revision := range frozen {
		image := filepath.Join(c.baseline(revision), imageFile)
		if out, err := c.buf(ctx, "breaking", "--against", image); err != nil {
			found = append(found, fmt.Errorf("the proto files break revision %d:\n%s", revision, out))
		}
		then, err := readTables(filepath.Join(c.baseline(revision), tablesDir))
		if err != nil {
			return err
		}
		found = append(found, then.keptBy(now, revision))
		old, err := readImage(image)
		if err != nil {
			return err
		}
		ages.add(old, revision)
	}
	found = append(found, ages.keptBy(present))
	ages.add(files, len(frozen)+1)
	return errors.Join(append(found, ages.judge(now.revisions, len(frozen)))...)
}

// Frozen are the revisions with a baseline: 1 and on, without gap.
func (c Contract) Frozen() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(c.Dir, baselineDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for frozen revisions: %w", err)
	}
	frozen := make([]int, len(entries))
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n < 1 || n > len(entries) || !e.IsDir() {
			return nil, fmt.Errorf("%s does not belong into %s: it holds one folder for each revision, from 1 without gap", e.Name(), filepath.Join(c.Dir, baselineDir))
		}
		frozen[n-1] = n
	}
	return frozen, nil
}

func (c Contract) baseline(revision int) string {
	return filepath.Join(c.Dir, baselineDir, strconv.Itoa(revision))
}

// image builds the proto files into a file.
func (c Contract) image(ctx context.Context, file string) error {
	if out, err := c.buf(ctx, "build", "--exclude-source-info", "-o", file); err != nil {
		return fmt.Errorf("the proto files do not build:\n%s", out)
	}
	return nil
}

// buf runs buf in the contract's folder and returns what it said.
func (c Contract) buf(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Buf, args...)
	cmd.Dir = c.Dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil && out.Len() == 0 {
		out.WriteString(err.Error())
	}
	return strings.TrimRight(out.String(), "\n"), err
}
