//go:build llama && cgo && linux

package main

import (
	"os"
	"syscall"
)

// calmSpins is how often a compute thread looks for work before it sleeps: what libgomp itself takes when it knows that
// the machine is crowded. It knows so of its own process alone; with its usual 300,000, two workers on the same cores wait
// for each other's waiting and fall to a tenth of their speed.
const calmSpins = "GOMP_SPINCOUNT=1000"

// calm starts the program anew in its place, same process, where nobody has said how compute threads wait. libgomp reads
// that from the environment before main.
func calm() {
	for _, name := range []string{"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} {
		if _, said := os.LookupEnv(name); said {
			return
		}
	}
	program, err := os.Executable()
	if err != nil {
		return // it works without
	}
	_ = syscall.Exec(program, os.Args, append(os.Environ(), calmSpins)) // as above
}
