// The dashboard held against Grafana's own schema of dashboards: every field is known and of its
// type, none is missing, and so for each panel's options and each query.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// An empty list of errors comes as an error that is not nil.
func found(err error) error {
	var each cog.BuildErrors
	if errors.As(err, &each) && len(each) == 0 {
		return nil
	}
	return err
}

func check(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var model dashboard.Dashboard
	if err := found(model.UnmarshalJSONStrict(raw)); err != nil {
		return err
	}
	return found(model.Validate())
}

func main() {
	plugins.RegisterDefaultPlugins()
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
