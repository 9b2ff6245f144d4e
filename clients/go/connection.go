package fsdpd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed" // calls.json
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// DefaultAddress is the default address of a coordinator.
const DefaultAddress = "127.0.0.1:7777"

// Limits, deadlines and retried methods, which all clients share (clients/calls.json).
//
//go:embed calls.json
var callsText []byte

var calls = readCalls(callsText)

type callsFile struct {
	DeadlineSeconds        map[string]int  `json:"deadline_seconds"`
	KeepaliveSeconds       int             `json:"keepalive_seconds"`
	KeepaliveTimeout       int             `json:"keepalive_timeout_seconds"`
	MaxMessageBytes        int             `json:"max_message_bytes"`
	MaxMetadataBytes       uint32          `json:"max_metadata_bytes"`
	ReconnectFirstMs       int             `json:"reconnect_first_ms"`
	ReconnectLongestMs     int             `json:"reconnect_longest_ms"`
	FollowReconnectSeconds int             `json:"follow_reconnect_for_seconds"`
	FollowPauseMs          int             `json:"follow_pause_ms"`
	ServiceConfig          serviceConfig   `json:"service_config"`
	repeated               map[string]bool // Methods that are safe to repeat.
	retry                  retryPolicy
}

type serviceConfig struct {
	MethodConfig []struct {
		Name        []struct{ Method string }
		RetryPolicy retryPolicy
	}
}

func readCalls(text []byte) callsFile {
	var read callsFile
	if err := json.Unmarshal(text, &read); err != nil {
		panic(fmt.Sprintf("calls.json: %v; run ./generate", err))
	}
	read.repeated = map[string]bool{}
	for _, each := range read.ServiceConfig.MethodConfig {
		read.retry = each.RetryPolicy
		for _, name := range each.Name {
			read.repeated[name.Method] = true
		}
	}
	return read
}

func (c callsFile) deadline(method string) time.Duration {
	seconds, own := c.DeadlineSeconds[method]
	if !own {
		seconds = c.DeadlineSeconds["default"]
	}
	return time.Duration(seconds) * time.Second
}

// Options are the addresses, CA and token of a client. Without CAFile the connection is plaintext, and no token is sent.
type Options struct {
	Address   string // HOST:PORT, or several with commas, one of which is the leader; empty: DefaultAddress.
	CAFile    string // CA certificates of the coordinator, in PEM.
	TokenFile string // Read for each call, so that a rotated token applies immediately.
	Token     string // The token itself, used without TokenFile.
	// Time limit for reconnects of a watch or a log reader; 0: the default of calls.json.
	ReconnectFor time.Duration
}

// FromEnvironment returns options from the variables of fsdpctl: FSDPD_SERVER, FSDPD_COORDINATOR_CA, FSDPD_TOKEN_FILE and
// FSDPD_TOKEN.
func FromEnvironment() Options {
	return Options{
		Address:   os.Getenv("FSDPD_SERVER"),
		CAFile:    os.Getenv("FSDPD_COORDINATOR_CA"),
		TokenFile: os.Getenv("FSDPD_TOKEN_FILE"),
		Token:     os.Getenv("FSDPD_TOKEN"),
	}
}

type bearer struct {
	file, token string
}

func (b bearer) read() (string, error) {
	token := b.token
	if b.file != "" {
		about, err := os.Stat(b.file)
		if err != nil {
			return "", err
		}
		if about.Mode().Perm()&0o004 != 0 {
			return "", fmt.Errorf("%s: every user of this machine can read the token; run chmod o-r", b.file)
		}
		text, err := os.ReadFile(b.file)
		if err != nil {
			return "", err
		}
		token = strings.TrimSpace(string(text))
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", fmt.Errorf("token: is not one word without spaces and line ends")
	}
	return token, nil
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return true }

func (o Options) dialOptions() ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithDisableRetry(),         // places.go retries, possibly with another coordinator.
		grpc.WithDisableServiceConfig(), // Ignore service configs from DNS.
		grpc.WithNoProxy(),              // Components of one cluster connect directly.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(calls.MaxMessageBytes)),
		grpc.WithMaxHeaderListSize(calls.MaxMetadataBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    time.Duration(calls.KeepaliveSeconds) * time.Second,
			Timeout: time.Duration(calls.KeepaliveTimeout) * time.Second,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  time.Duration(calls.ReconnectFirstMs) * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   time.Duration(calls.ReconnectLongestMs) * time.Millisecond,
			},
			MinConnectTimeout: calls.deadline("") / 3,
		}),
	}
	if o.CAFile == "" {
		return append(options, grpc.WithTransportCredentials(insecure.NewCredentials())), nil
	}
	trusted, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("%s: contains no PEM certificate", o.CAFile)
	}
	options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	if o.TokenFile == "" && o.Token == "" {
		return options, nil
	}
	caller := bearer{file: o.TokenFile, token: o.Token}
	if _, err := caller.read(); err != nil { // Report a bad file now instead of at the first call.
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(caller)), nil
}

func (o Options) addresses() ([]string, error) {
	if o.Address == "" {
		return []string{DefaultAddress}, nil
	}
	var addresses []string
	for _, each := range strings.Split(o.Address, ",") {
		each = strings.TrimSpace(each)
		host, port, err := net.SplitHostPort(each)
		if number, invalid := strconv.ParseUint(port, 10, 16); err != nil || host == "" || invalid != nil || number == 0 {
			return nil, fmt.Errorf("%q is not HOST:PORT with a port from 1 to 65535", each)
		}
		addresses = append(addresses, each)
	}
	return addresses, nil
}
