from my_utils.run.command import main

raise SystemExit(main())
