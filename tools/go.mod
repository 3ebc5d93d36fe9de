module github.com/distributed-gguf-runtime/dgr/tools

go 1.26.0

require (
	github.com/distributed-gguf-runtime/dgr/gen v0.0.0
	github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0
	github.com/gofrs/flock v0.13.2
	github.com/google/go-cmp v0.7.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/mod v0.42.0
	golang.org/x/net v0.60.0
	golang.org/x/text v0.42.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

require (
	github.com/distributed-gguf-runtime/dgr/libs/client v0.0.0
	github.com/distributed-gguf-runtime/dgr/libs/native v0.0.0
	github.com/golang/mock v1.6.0
	github.com/magefile/mage v1.17.2 // indirect
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/distributed-gguf-runtime/dgr/gen => ../gen

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../libs/engine

tool github.com/magefile/mage

replace github.com/distributed-gguf-runtime/dgr/libs/client => ../libs/client

replace github.com/distributed-gguf-runtime/dgr/libs/native => ../libs/native
