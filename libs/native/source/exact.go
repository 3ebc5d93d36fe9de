package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var (
	failedAt   = regexp.MustCompile(`(?m)^error: patch failed: (.+):(\d+)$`)
	failedFile = regexp.MustCompile(`(?m)^error: ([^:\n]+): (.+)$`)
	checking   = regexp.MustCompile(`^Checking patch (.+)\.\.\.$`)
	moved      = regexp.MustCompile(`^Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)`)
	hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@`)
)

// checkExact proves that a patch applies to the work tree at the very lines it names. The error names file and hunk.
func checkExact(ctx context.Context, work, patch string) error {
	name := filepath.Base(patch)
	_, stderr, err := git{dir: work}.output(ctx, "apply", "--check", "--verbose", "--whitespace=nowarn", patch)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("patch %s does not apply: %s", name, failure(stderr, patch, err))
	}
	if strings.Contains(stderr, "Skipped patch") {
		return fmt.Errorf("patch %s was skipped by git: %s", name, firstLine(stderr))
	}
	file := ""
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if m := checking.FindStringSubmatch(line); m != nil {
			file = m[1]
		}
		if m := moved.FindStringSubmatch(line); m != nil {
			return fmt.Errorf("patch %s is not exact: hunk %s of %s applies at line %s, %s lines from where it says; run `mage patch:refresh`",
				name, m[1], file, m[2], m[3])
		}
	}
	return nil
}

// failure turns what git said about a patch into one phrase with file and hunk.
func failure(stderr, patch string, err error) string {
	if m := failedAt.FindStringSubmatch(stderr); m != nil {
		line, _ := strconv.Atoi(m[2])
		if n := hunkAt(patch, m[1], line); n > 0 {
			return fmt.Sprintf("hunk %d of %s (line %d) does not match the source", n, m[1], line)
		}
		return fmt.Sprintf("%s does not match the source at line %d", m[1], line)
	}
	if m := failedFile.FindStringSubmatch(stderr); m != nil {
		return m[1] + ": " + m[2]
	}
	return err.Error()
}

// hunkAt is the number, from 1, of the hunk of a file in a patch that begins at a line of the old file; 0: none.
func hunkAt(patch, file string, line int) int {
	data, err := os.ReadFile(patch)
	if err != nil {
		return 0
	}
	current, n := "", 0
	for text := range strings.Lines(string(data)) {
		if after, ok := strings.CutPrefix(text, "diff --git a/"); ok {
			current, _, _ = strings.Cut(after, " b/")
			n = 0
		}
		if m := hunkHeader.FindStringSubmatch(text); m != nil && current == file {
			n++
			if m[1] == strconv.Itoa(line) {
				return n
			}
		}
	}
	return 0
}
