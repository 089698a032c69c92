from my_utils.cli.command import main

raise SystemExit(main())
