package gguf

import "slices"

// adapted mirrors the accept list of the patch queue (libs/native/patches, llama-shard-archs.cpp); a test compares both.
var adapted = []string{"gemma3", "llama", "phi3", "qwen2", "qwen3"}

// Adapted says whether models of an architecture can be cut into shards. Others are refused with
// UNSUPPORTED_ARCHITECTURE, unless one worker loads all their layers.
func Adapted(arch string) bool { return slices.Contains(adapted, arch) }

// AdaptedArchitectures are the architectures that can be cut, in alphabetical order.
func AdaptedArchitectures() []string { return slices.Clone(adapted) }
