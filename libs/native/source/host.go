package source

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// host is what fetching asks of the machine; tests put another one in its place.
type host struct {
	getenv   func(string) string
	lookPath func(string) (string, error)
	npmrc    string // file with the user's npm settings
	client   *http.Client
	connect  time.Duration // bound of the first answer of a network source
}

func thisHost() host {
	h := host{
		getenv:   os.Getenv,
		lookPath: exec.LookPath,
		client:   &http.Client{Timeout: networkTime},
		connect:  10 * time.Second,
	}
	if home, err := os.UserHomeDir(); err == nil {
		h.npmrc = filepath.Join(home, ".npmrc")
	}
	return h
}

// registry is the npm registry that this machine is set up for, without a slash at the end; empty when there is none.
func (h host) registry() string {
	for _, name := range []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"} {
		if v := h.getenv(name); v != "" {
			return strings.TrimRight(v, "/")
		}
	}
	f, err := os.Open(h.npmrc)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if ok && strings.TrimSpace(key) == "registry" {
			return strings.TrimRight(strings.TrimSpace(value), "/")
		}
	}
	return ""
}
