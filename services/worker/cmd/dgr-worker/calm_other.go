//go:build !(llama && cgo && linux)

package main

// calm does nothing: there are no compute threads of libgomp.
func calm() {}
