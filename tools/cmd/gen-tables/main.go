// Command gen-tables writes gen/tables from contracts/tables: gen-tables CONTRACTS_TABLES OUT.
//
// OUT is emptied first. A table that is incomplete, doubled or names something unknown is refused, with file and row, and
// then OUT stays as it was.
package main

import (
	"fmt"
	"os"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gen-tables TABLES OUT")
		os.Exit(2)
	}
	if err := tablegen.Write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "gen-tables: %v\n", err)
		os.Exit(1)
	}
}
