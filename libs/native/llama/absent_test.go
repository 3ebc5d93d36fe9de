//go:build !(llama && cgo)

package llama

import (
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// TestAbsent: without the native library New says how to get it.
func TestAbsent(t *testing.T) {
	e, text, err := New()
	if e != nil || text != nil || engine.CodeOf(err) != engine.UnsupportedFeature {
		t.Fatalf("New gave %v, %v, %v", e, text, err)
	}
	for _, word := range []string{"mage native:build", "-tags llama", "dgr-native env"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not speak of %q: %v", word, err)
		}
	}
}
