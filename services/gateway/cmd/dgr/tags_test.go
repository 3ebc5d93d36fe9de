//go:build unix && !llama

package main_test

// workerTags builds the worker without native code.
const workerTags = ""
