package conformance

import (
	"crypto/tls"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Secured is the option by which a Peer shows a certificate, PEM in files, and asks hops for theirs, which it takes unseen: that
// they are the right ones is proved by workers, which only dial whom they know.
func Secured(cert, key string) (grpc.ServerOption, error) {
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	})), nil
}
