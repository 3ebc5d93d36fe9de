// Command gen-fixtures writes gen/fixtures, golden messages of the worker's contract: gen-fixtures OUT. OUT is emptied first.
package main

import (
	"fmt"
	"os"

	"github.com/distributed-gguf-runtime/dgr/tools/fixturegen"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen-fixtures OUT")
		os.Exit(2)
	}
	if err := fixturegen.Write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "gen-fixtures: %v\n", err)
		os.Exit(1)
	}
}
