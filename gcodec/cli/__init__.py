"""The command line: `verbs` parse and call, `render` shows the results; nothing here measures."""
