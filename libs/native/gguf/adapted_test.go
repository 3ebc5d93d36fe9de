package gguf

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdaptedIsTheAcceptListOfThePatches reads the lines that the patch queue adds to the accept list.
func TestAdaptedIsTheAcceptListOfThePatches(t *testing.T) {
	patches, err := filepath.Glob(filepath.Join("..", "patches", "*.patch"))
	require.NoError(t, err)
	if len(patches) == 0 {
		t.Skip("no patch queue beside this package")
	}
	slices.Sort(patches)
	line := regexp.MustCompile(`^([+-])\s*case LLM_ARCH_([A-Z0-9_]+):`)
	accepted := map[string]bool{}
	for _, path := range patches {
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		list := false
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			if strings.HasPrefix(s.Text(), "diff --git ") {
				list = strings.HasSuffix(s.Text(), "/llama-shard-archs.cpp")
			}
			if m := line.FindStringSubmatch(s.Text()); list && m != nil {
				accepted[strings.ToLower(m[2])] = m[1] == "+"
			}
		}
		require.NoError(t, s.Err())
	}
	var names []string
	for name, ok := range accepted {
		if ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	require.Equal(t, names, AdaptedArchitectures())
	require.True(t, Adapted("llama"))
	require.False(t, Adapted("bert"))
}
