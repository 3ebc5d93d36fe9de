module github.com/distributed-gguf-runtime/dgr/services/gateway

go 1.26

require github.com/distributed-gguf-runtime/dgr/gen v0.0.0
require github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0
require github.com/distributed-gguf-runtime/dgr/libs/native v0.0.0
require github.com/distributed-gguf-runtime/dgr/libs/client v0.0.0

replace github.com/distributed-gguf-runtime/dgr/gen => ../../gen
replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../../libs/engine
replace github.com/distributed-gguf-runtime/dgr/libs/native => ../../libs/native
replace github.com/distributed-gguf-runtime/dgr/libs/client => ../../libs/client
