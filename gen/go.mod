module github.com/distributed-gguf-runtime/dgr/gen

go 1.26.0

require (
	github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0
	github.com/getkin/kin-openapi v0.122.0
	github.com/go-chi/chi/v5 v5.5.0
	github.com/golang/mock v1.6.0
	github.com/oapi-codegen/runtime v1.8.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/go-openapi/jsonpointer v0.19.6 // indirect
	github.com/go-openapi/swag v0.22.4 // indirect
	github.com/invopop/yaml v0.2.0 // indirect
	github.com/josharian/intern v1.0.0 // indirect
	github.com/mailru/easyjson v0.7.7 // indirect
	github.com/mohae/deepcopy v0.0.0-20170929034955-c48cc78d4826 // indirect
	github.com/perimeterx/marshmallow v1.1.5 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../libs/engine
