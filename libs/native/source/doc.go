// Package source obtains the pinned llama.cpp and puts the patch queue on it.
//
// The identity of the source is a git tree hash (pin.json): wherever the files come from, they must give that hash, and
// nothing is built otherwise. The queue (patches/) is a row of mail-formatted patches; patches/series.json holds the
// SHA-256 of each and the tree hash after it, so that a changed byte is found and named before it is compiled.
//
// How the patched tree is compiled is the business of package build; nothing here starts a compiler.
package source
