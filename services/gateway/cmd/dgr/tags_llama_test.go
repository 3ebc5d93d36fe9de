//go:build unix && llama

package main_test

// workerTags builds the worker with llama.cpp; the environment says where it is (dgr-native env).
const workerTags = "llama"
