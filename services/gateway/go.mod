module github.com/distributed-gguf-runtime/dgr/services/gateway

go 1.26.0

require github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0

require github.com/distributed-gguf-runtime/dgr/libs/native v0.0.0

require (
	github.com/distributed-gguf-runtime/dgr/gen v0.0.0
	github.com/distributed-gguf-runtime/dgr/libs/client v0.0.0-00010101000000-000000000000
	github.com/dustin/go-humanize v1.1.0
	github.com/google/go-cmp v0.7.0
	github.com/schollz/progressbar/v3 v3.19.1
	github.com/spf13/cobra v1.10.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	golang.org/x/term v0.46.0
)

require (
	github.com/gofrs/flock v0.13.2 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/mitchellh/colorstring v0.0.0-20190213212951-d06e56a500db // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/spf13/pflag v1.0.9
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12
)

replace github.com/distributed-gguf-runtime/dgr/gen => ../../gen

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../../libs/engine

replace github.com/distributed-gguf-runtime/dgr/libs/native => ../../libs/native

replace github.com/distributed-gguf-runtime/dgr/libs/client => ../../libs/client
