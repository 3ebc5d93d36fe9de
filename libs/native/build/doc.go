// Package build compiles the native library: the pinned and patched llama.cpp with the shim on it.
//
// Results are kept by content: the key is a hash of source tree, patch queue, shim, compiler, processor and flags, so
// that a second build costs nothing and a stale one is never linked. What is fetched and patched is the business of
// package source; what is built, of the shim's CMakeLists.txt.
package build
